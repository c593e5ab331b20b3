-- A type is dropped, and with it the column that has it; a type and a column of these names come.
-- read again: dropped and added again
-- part: table
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE item (id int PRIMARY KEY, mood mood, name text);
-- part: rows
INSERT INTO item SELECT n, 'sad', 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET mood = 'glad' WHERE id = 2;
-- part: alteration
DROP TYPE mood CASCADE;
UPDATE item SET name = 'between' WHERE id = 1;
CREATE TYPE mood AS ENUM ('glad', 'sad');
ALTER TABLE item ADD COLUMN mood mood;
-- part: after
UPDATE item SET mood = 'sad' WHERE id = 3;
-- outcome: merging item
-- outcome: columns item (id, mood, name, mood__2)
-- outcome in mid_batch, while_a_chunk_is_read: needs backfill item~last (columns were dropped beside others.*built anew)
