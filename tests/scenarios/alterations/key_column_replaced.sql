-- The key's column is dropped, and another one is the key.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, number int NOT NULL);
-- part: rows
INSERT INTO item SELECT n, 10 * n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET number = 21 WHERE id = 2;
-- part: alteration
ALTER TABLE item DROP COLUMN id, ADD PRIMARY KEY (number);
-- part: after
UPDATE item SET number = 31 WHERE number = 30;
DELETE FROM item WHERE number = 40;
-- outcome: needs backfill item~2 (the key changed.*built anew)
-- outcome: tables item~2
