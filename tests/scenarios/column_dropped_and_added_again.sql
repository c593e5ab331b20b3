-- A column of a dropped one's name is another column, of whatever type: the target calls it by a number. What was
-- dropped keeps what it held. Where no change came in between, a change behind may be of either, and the table is built
-- anew. A column that comes and goes within one batch, and that the catalogue was never seen with, is followed, and the
-- table marked: it may have had a default.
-- alone

CREATE TABLE item (id int PRIMARY KEY, size int);
CREATE TABLE other (id int PRIMARY KEY, size int);
CREATE TABLE unseen (id int PRIMARY KEY);
CREATE TABLE at_once (id int PRIMARY KEY, size int);
-- step: run
INSERT INTO item VALUES (1, 1);
INSERT INTO other VALUES (1, 1);
INSERT INTO unseen VALUES (1);
INSERT INTO at_once VALUES (1, 1);
-- step: run
ALTER TABLE item DROP COLUMN size;
INSERT INTO item VALUES (2);
ALTER TABLE item ADD COLUMN size int;
INSERT INTO item VALUES (3, 3);
ALTER TABLE other DROP COLUMN size;
INSERT INTO other VALUES (2);
ALTER TABLE other ADD COLUMN size text;
INSERT INTO other VALUES (3, 'three');
ALTER TABLE unseen ADD COLUMN size int;
INSERT INTO unseen VALUES (2, 2);
ALTER TABLE unseen DROP COLUMN size;
INSERT INTO unseen VALUES (3);
ALTER TABLE at_once DROP COLUMN size, ADD COLUMN size int;
INSERT INTO at_once VALUES (2, 2);
-- step: run
-- expect: current item (id, size, size__2)
--   1 | 1 | ∅
--   2 | ∅ | ∅
--   3 | ∅ | 3
-- expect: current other (id, size, size__2)
--   1 | 1 | ∅
--   2 | ∅ | ∅
--   3 | ∅ | three
-- expect: needs backfill unseen (size.*what older rows have of it cannot be told)
-- expect: current unseen (id, size)
--   1 | ∅
--   2 | 2
--   3 | ∅
-- expect: needs backfill at_once~3 (not certain.*built anew)
-- expect: current at_once (id, size)
--   1 | 1
