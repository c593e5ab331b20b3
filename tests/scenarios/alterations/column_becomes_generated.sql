-- A column is replaced by a generated one of its name.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, size int, name text);
-- part: rows
INSERT INTO item SELECT n, n, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET size = 20 WHERE id = 2;
-- part: alteration
ALTER TABLE item DROP COLUMN size;
UPDATE item SET name = 'between' WHERE id = 1;
ALTER TABLE item ADD COLUMN size int GENERATED ALWAYS AS (2 * id) STORED;
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
-- outcome: needs backfill item (generated one|rewritten)
-- outcome in mid_batch, while_a_chunk_is_read: needs backfill item~last (columns were dropped beside others.*built anew)
