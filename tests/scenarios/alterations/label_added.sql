-- An enum gets another label.
-- part: table
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE item (id int PRIMARY KEY, mood mood);
-- part: rows
INSERT INTO item SELECT n, 'sad' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET mood = 'glad' WHERE id = 2;
-- part: alteration
ALTER TYPE mood ADD VALUE 'calm' BEFORE 'glad';
-- part: after
UPDATE item SET mood = 'calm' WHERE id = 3;
-- outcome: merging item
