-- A table moves to another tablespace, its index too: it lies in other files, with the same rows.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name text, body text STORAGE EXTERNAL);
-- part: rows
INSERT INTO item SELECT n, 'old', repeat('b', 3000) FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
ALTER TABLE item SET TABLESPACE elsewhere;
UPDATE item SET name = 'between' WHERE id = 1;
ALTER INDEX item_pkey SET TABLESPACE elsewhere;
DELETE FROM item WHERE id = 4;
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
-- outcome: merging item
