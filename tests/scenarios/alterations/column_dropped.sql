-- A column is dropped.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, size int, name text);
-- part: rows
INSERT INTO item SELECT n, n, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before', size = 9 WHERE id = 2;
-- part: alteration
ALTER TABLE item DROP COLUMN size;
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
INSERT INTO item VALUES (5, 'new');
-- outcome: merging item
