-- A column with a constant default is added, which older rows have too.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name text);
-- part: rows
INSERT INTO item SELECT n, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
ALTER TABLE item ADD COLUMN size int DEFAULT 7;
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
UPDATE item SET size = NULL WHERE id = 4;
INSERT INTO item VALUES (5, 'new', 5);
-- outcome: merging item
