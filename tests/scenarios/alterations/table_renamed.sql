-- A table gets another name, which the file names too.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name text);
-- part: rows
INSERT INTO item SELECT n, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
ALTER TABLE item RENAME TO thing;
-- part: after
UPDATE thing SET name = 'after' WHERE id = 3;
-- outcome: merging item
