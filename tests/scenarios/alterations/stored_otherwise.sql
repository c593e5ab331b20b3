-- How and where PostgreSQL stores a table changes, and whose child it is; its rows are the same.
-- capture: item
-- part: table
CREATE TABLE parent (id int, name text);
CREATE TABLE item (id int PRIMARY KEY, name text, body text STORAGE EXTERNAL);
-- part: rows
INSERT INTO item SELECT n, 'old', repeat('b', 3000) FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
ALTER TABLE item ALTER COLUMN body SET STORAGE MAIN, ALTER COLUMN name SET COMPRESSION pglz, ALTER COLUMN name SET STATISTICS 10;
ALTER TABLE item INHERIT parent;
UPDATE item SET name = 'between' WHERE id = 1;
ALTER TABLE item NO INHERIT parent;
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
-- outcome: merging item
