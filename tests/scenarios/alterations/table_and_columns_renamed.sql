-- A table and its columns are renamed in one transaction, with a change under each name.
-- read again: renamed
-- part: table
CREATE TABLE item (id int PRIMARY KEY, colour text, size int);
-- part: rows
INSERT INTO item SELECT n, 'red', n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET colour = 'before' WHERE id = 2;
-- part: alteration
BEGIN;
UPDATE item SET size = 20 WHERE id = 2;
ALTER TABLE item RENAME TO thing;
UPDATE thing SET size = 21 WHERE id = 2;
ALTER TABLE thing RENAME COLUMN colour TO paint;
UPDATE thing SET paint = 'within' WHERE id = 1;
COMMIT;
-- part: after
UPDATE thing SET paint = 'after' WHERE id = 3;
INSERT INTO thing VALUES (5, 'new', 5);
-- outcome: merging item
