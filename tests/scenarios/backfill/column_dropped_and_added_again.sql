-- A column of a dropped one's name is another column of the target, there and in every chunk; a column that is called by
-- that number at the source gets the next one. What was dropped is no difference to a backfill.
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
-- expect: merging note
-- step: plan
-- step: read
-- step: end backfill
-- expect: report note (repaired=0, unchanged=4)
-- expect: current note (id, size, size__2)
--   1 | 1 | ∅
--   2 | 2 | ∅
--   3 | ∅ | ∅
--   4 | ∅ | 4
ALTER TABLE note ADD COLUMN size__2 int;
UPDATE note SET size = 10, size__2 = 100 WHERE id = 1;
-- step: run
ALTER TABLE note DROP COLUMN size;
ALTER TABLE note RENAME COLUMN size__2 TO size;
UPDATE note SET size = 200 WHERE id = 2;
-- step: plan
-- step: read
-- step: end backfill
-- expect: current note (id, size, size__2, size__3)
--   1 | ∅ | 10 | 100
--   2 | ∅ | ∅ | 200
--   3 | ∅ | ∅ | ∅
--   4 | ∅ | 4 | ∅
-- step: verify
-- step: backfill again
