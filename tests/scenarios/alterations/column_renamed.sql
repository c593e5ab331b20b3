-- A column is renamed.
-- read again: renamed
-- part: table
CREATE TABLE item (id int PRIMARY KEY, colour text, size text, body text STORAGE EXTERNAL);
-- part: rows
INSERT INTO item SELECT n, 'red', 'big', repeat('b', 3000) FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET colour = 'before' WHERE id = 2;
-- part: alteration
ALTER TABLE item RENAME COLUMN colour TO paint;
-- part: after
UPDATE item SET paint = 'after' WHERE id = 3;
INSERT INTO item VALUES (5, 'new', 'small', 'b');
-- outcome: merging item
