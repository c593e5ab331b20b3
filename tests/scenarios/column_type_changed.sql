-- A column's type changes: the table is built anew beside the old one, which stays as it was, and takes its place.
-- alone

CREATE TABLE item (id int PRIMARY KEY, size int);
CREATE TABLE neighbour (id int PRIMARY KEY);
-- step: run
INSERT INTO item VALUES (1, 1);
-- step: run
INSERT INTO item VALUES (2, 2);
ALTER TABLE item ALTER COLUMN size TYPE text USING 'size ' || size;
INSERT INTO item VALUES (3, 'three');
INSERT INTO neighbour VALUES (1);
-- step: run
-- expect: tables neighbour, item~2
-- expect: needs backfill item~2 (changed from integer.*readers see)
-- expect: merging neighbour
-- expect: confirmed everything
-- expect: current item (id, size)
--   1 | 1
--   2 | 2
UPDATE item SET size = 'four' WHERE id = 1;
INSERT INTO neighbour VALUES (2);
-- step: run
-- expect: confirmed everything
-- step: backfill wanted
-- expect: merging item~2
-- expect: current item (id, size)
--   1 | 1
--   2 | 2
-- expect: current item~2 (id, size)
--   1 | four
--   2 | size 2
--   3 | three
-- step: run
-- expect: current item~2 (id, size)
--   1 | four
--   2 | size 2
--   3 | three
