-- A column is dropped and another one of its name comes before any change of the table was staged, whose rows a backfill alone brought:
-- the new column is another one, and older rows keep what the old one held.
-- alone

CREATE TABLE item (id int PRIMARY KEY, size int, name text);
INSERT INTO item SELECT n, n, 'old' FROM generate_series(1, 3) n;
-- step: run
-- step: plan
-- step: read
-- step: end backfill
ALTER TABLE item DROP COLUMN size;
-- step: drain
ALTER TABLE item ADD COLUMN size text;
UPDATE item SET size = 'new' WHERE id = 1;
-- step: run
-- expect: needs backfill item (dropped and added again)
-- expect: columns item (id, size, name, size__2)
-- expect: current item (id, size, name, size__2)
--   1 | ∅ | old | new
--   2 | 2 | old | ∅
--   3 | 3 | old | ∅
UPDATE item SET name = 'newer' WHERE id = 2;
-- step: run
-- step: backfill wanted
-- expect: merging item
-- step: backfill again
