-- DROP and CREATE of one name: the rows of the old table stay where they are, the new one has a place of its own.
-- alone

CREATE TABLE item (id int PRIMARY KEY, name text);
-- step: run
INSERT INTO item VALUES (1, 'old');
-- step: run
INSERT INTO item VALUES (2, 'old');
DROP TABLE item;
CREATE TABLE item (id int PRIMARY KEY, size int);
INSERT INTO item VALUES (2, 20);
-- step: run
-- expect: tables item~2
-- expect: needs backfill item~2 (had rows)
-- expect: current item (id, name)
--   1 | old
--   2 | old
INSERT INTO item VALUES (3, 30);
-- step: backfill wanted
-- expect: merging item~2
-- expect: current item~2 (id, size)
--   2 | 20
--   3 | 30
-- expect: current item (id, name)
--   1 | old
--   2 | old
