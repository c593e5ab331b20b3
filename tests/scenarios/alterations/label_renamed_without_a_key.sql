-- A label is renamed in a table without a key: a change names its old row as it reads by now.
-- part: table
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE item (name text, mood mood);
ALTER TABLE item REPLICA IDENTITY FULL;
-- part: rows
INSERT INTO item VALUES ('a', 'sad'), ('a', 'sad'), ('b', 'sad'), ('c', 'glad');
-- part: before
UPDATE item SET mood = 'sad' WHERE name = 'c';
-- part: alteration
ALTER TYPE mood RENAME VALUE 'sad' TO 'blue';
-- part: after
UPDATE item SET name = 'bb' WHERE name = 'b';
DELETE FROM item WHERE name = 'c';
-- outcome: needs backfill item (older rows read as something else)
