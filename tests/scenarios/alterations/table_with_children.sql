-- A table has children that inherit from it: each is a table of its own, and what is said of the parent is said of all.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name text);
CREATE TABLE special (PRIMARY KEY (id), extra int) INHERITS (item);
-- part: rows
INSERT INTO item SELECT n, 'old' FROM generate_series(1, 4) n;
INSERT INTO special SELECT n, 'old', n FROM generate_series(11, 14) n;
-- part: before
UPDATE item SET name = 'before' WHERE id IN (2, 12);
-- part: alteration
ALTER TABLE item ADD COLUMN size int DEFAULT 7;
DELETE FROM ONLY item WHERE id IN (1, 11);
UPDATE item SET size = 8 WHERE id IN (4, 14);
ALTER TABLE special NO INHERIT item;
ALTER TABLE item DROP COLUMN name;
-- part: after
UPDATE special SET name = 'after' WHERE id = 13;
INSERT INTO item VALUES (5, 50);
-- outcome: merging item
-- outcome: merging special
-- outcome in mid_batch, while_a_chunk_is_read: needs backfill item~last (columns were dropped beside others.*built anew)
-- outcome in mid_batch, while_a_chunk_is_read: merging special
