-- A column of a dropped one's name takes its place in the target: the rows that still have what the dropped one held are
-- made right by the backfill that the table is marked for.
-- alone

CREATE TABLE note (id int PRIMARY KEY, size int);
-- step: run
INSERT INTO note VALUES (1, 1), (2, 2);
-- step: run
ALTER TABLE note DROP COLUMN size;
INSERT INTO note VALUES (3);
-- step: run
-- expect: current note (id, size)
--   1 | 1
--   2 | 2
--   3 | ∅
ALTER TABLE note ADD COLUMN size int;
INSERT INTO note VALUES (4, 4);
-- step: run
-- expect: needs backfill note (size.*dropped and added again)
-- step: plan
-- step: read
-- step: end backfill
-- expect: merging note
-- expect: current note (id, size)
--   1 | ∅
--   2 | ∅
--   3 | ∅
--   4 | 4
-- step: backfill again
