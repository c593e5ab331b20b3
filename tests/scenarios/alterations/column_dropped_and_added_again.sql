-- A column is dropped, and another one of its name and of another type comes; a change in between shows both.
-- read again: dropped and added again
-- part: table
CREATE TABLE item (id int PRIMARY KEY, size int, body text STORAGE EXTERNAL);
-- part: rows
INSERT INTO item SELECT n, n, repeat('b', 3000) FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET size = 20 WHERE id = 2;
-- part: alteration
ALTER TABLE item DROP COLUMN size;
UPDATE item SET body = 'between' WHERE id = 1;
ALTER TABLE item ADD COLUMN size text;
-- part: after
UPDATE item SET size = 'after' WHERE id = 3;
INSERT INTO item (id, size) VALUES (5, 'new');
-- outcome: merging item
-- outcome: columns item (id, size, body, size__2)
-- outcome in mid_batch, while_a_chunk_is_read: needs backfill item~last (columns were dropped beside others.*built anew)
