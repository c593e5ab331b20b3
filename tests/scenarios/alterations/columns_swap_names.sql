-- Two columns swap their names, in one transaction with a change.
-- read again: renamed
-- part: table
CREATE TABLE item (id int PRIMARY KEY, colour text, size text);
-- part: rows
INSERT INTO item SELECT n, 'red', 'big' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET colour = 'before' WHERE id = 2;
-- part: alteration
BEGIN;
ALTER TABLE item RENAME COLUMN colour TO x;
ALTER TABLE item RENAME COLUMN size TO colour;
ALTER TABLE item RENAME COLUMN x TO size;
UPDATE item SET colour = 'small' WHERE id = 1;
COMMIT;
-- part: after
UPDATE item SET size = 'after' WHERE id = 3;
-- outcome: merging item
