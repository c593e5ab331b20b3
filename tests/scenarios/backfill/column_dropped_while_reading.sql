-- A column is dropped while chunks are read: chunks of both shapes are claimed, and the rows that changed meanwhile are
-- right under either.
-- alone
-- chunk rows: 2

CREATE TABLE note (id int PRIMARY KEY, size int, name text);
INSERT INTO note SELECT n, n, 'old' FROM generate_series(1, 6) n;
-- step: run
-- step: plan
-- at: low note
UPDATE note SET name = 'wide' WHERE id IN (1, 5);
-- at: high note
UPDATE note SET name = 'unseen' WHERE id = 2;
ALTER TABLE note DROP COLUMN size;
UPDATE note SET name = 'narrow' WHERE id IN (1, 6);
-- step: read
DELETE FROM note WHERE id = 4;
-- step: end backfill
-- expect: merging note
-- expect: current note (id, size, name)
--   1 | ∅ | narrow
--   2 | 2 | unseen
--   3 | ∅ | old
--   5 | * | wide
--   6 | ∅ | narrow
-- step: backfill again
