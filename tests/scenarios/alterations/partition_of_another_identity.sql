-- A partition names its old rows by another column than the key for a while: a DELETE says nothing that names a row, nor
-- does an UPDATE say which key it had.
-- part: table
CREATE TABLE item (id int, part int, number int NOT NULL, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE item_1 PARTITION OF item FOR VALUES IN (1);
CREATE TABLE item_2 PARTITION OF item FOR VALUES IN (2);
CREATE UNIQUE INDEX item_1_number ON item_1 (number);
-- part: rows
INSERT INTO item SELECT n, 1 + n % 2, 10 * n FROM generate_series(1, 6) n;
-- part: before
UPDATE item SET number = 21 WHERE id = 2;
-- part: alteration
ALTER TABLE item_1 REPLICA IDENTITY USING INDEX item_1_number;
DELETE FROM item WHERE id = 2;
UPDATE item SET number = 41 WHERE id = 4;
UPDATE item SET id = 60, number = 61 WHERE id = 6;
DELETE FROM item WHERE id = 1;
ALTER TABLE item_1 REPLICA IDENTITY DEFAULT;
-- part: after
UPDATE item SET number = 31 WHERE id = 3;
-- outcome: needs backfill item (another replica identity)
