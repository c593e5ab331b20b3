-- The index of a table's replica identity is called otherwise, and another one takes its name.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, number int NOT NULL, other int NOT NULL);
CREATE UNIQUE INDEX item_number ON item (number);
ALTER TABLE item REPLICA IDENTITY USING INDEX item_number;
-- part: rows
INSERT INTO item SELECT n, 10 * n, 100 * n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET number = 21 WHERE id = 2;
-- part: alteration
ALTER INDEX item_number RENAME TO item_number_old;
CREATE UNIQUE INDEX item_number ON item (other);
-- part: after
UPDATE item SET number = 31 WHERE id = 3;
UPDATE item SET other = 401 WHERE id = 4;
DELETE FROM item WHERE id = 1;
-- outcome: merging item
