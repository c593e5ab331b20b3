-- A table gets into another schema, which the file names too.
-- capture: *, *_aside.item
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name text);
-- part: rows
INSERT INTO item SELECT n, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
CREATE SCHEMA table_in_another_schema_aside;
ALTER TABLE item SET SCHEMA table_in_another_schema_aside;
-- part: after
UPDATE table_in_another_schema_aside.item SET name = 'after' WHERE id = 3;
INSERT INTO table_in_another_schema_aside.item VALUES (5, 'new');
-- outcome: merging item
