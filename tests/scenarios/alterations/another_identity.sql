-- A table's replica identity becomes another unique index: its rows are told apart by other columns.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, number int NOT NULL UNIQUE);
-- part: rows
INSERT INTO item SELECT n, 10 * n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET number = 21 WHERE id = 2;
-- part: alteration
ALTER TABLE item REPLICA IDENTITY USING INDEX item_number_key;
-- part: after
UPDATE item SET id = 9 WHERE number = 30;
DELETE FROM item WHERE number = 40;
-- outcome: needs backfill item~2 (the key changed.*built anew)
-- outcome: tables item~2
