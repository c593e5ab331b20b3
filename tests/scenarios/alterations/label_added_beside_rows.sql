-- A type is made, gets another label and a column, whose rows have that label, all in one transaction.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name text);
-- part: rows
INSERT INTO item SELECT n, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
BEGIN;
CREATE TYPE mood AS ENUM ('sad');
ALTER TYPE mood ADD VALUE 'glad';
ALTER TABLE item ADD COLUMN mood mood DEFAULT 'glad';
UPDATE item SET mood = 'sad' WHERE id = 1;
COMMIT;
-- part: after
ALTER TYPE mood ADD VALUE 'calm';
UPDATE item SET mood = 'calm' WHERE id = 3;
-- outcome: needs backfill item (older rows may read as something else)
