-- A table with a key sends whole old rows from here on.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name text);
-- part: rows
INSERT INTO item SELECT n, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
ALTER TABLE item REPLICA IDENTITY FULL;
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
UPDATE item SET id = 40 WHERE id = 4;
-- outcome: merging item
