-- The key and another column of its type take each other's names: the key is the column that it was.
-- read again: renamed
-- part: table
CREATE TABLE item (id int PRIMARY KEY, number int);
-- part: rows
INSERT INTO item SELECT n, 10 * n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET number = 21 WHERE id = 2;
-- part: alteration
BEGIN;
UPDATE item SET number = 11 WHERE id = 1;
ALTER TABLE item RENAME COLUMN id TO x;
ALTER TABLE item RENAME COLUMN number TO id;
ALTER TABLE item RENAME COLUMN x TO number;
UPDATE item SET id = 31 WHERE number = 3;
COMMIT;
-- part: after
UPDATE item SET number = 44 WHERE number = 4;
INSERT INTO item (number, id) VALUES (5, 50);
-- outcome: merging item
