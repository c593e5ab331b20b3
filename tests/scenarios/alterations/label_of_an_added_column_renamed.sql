-- A column comes, is written to, and a label of its type is renamed, all before anybody looks again.
-- part: table
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE item (id int PRIMARY KEY, name text);
-- part: rows
INSERT INTO item SELECT n, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
ALTER TABLE item ADD COLUMN mood mood;
UPDATE item SET mood = 'sad' WHERE id = 2;
ALTER TYPE mood RENAME VALUE 'sad' TO 'blue';
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
-- outcome: needs backfill item (older rows may read as something else)
