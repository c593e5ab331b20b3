-- A table gets another primary key.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, number int NOT NULL);
-- part: rows
INSERT INTO item SELECT n, 10 * n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET number = 21 WHERE id = 2;
-- part: alteration
ALTER TABLE item DROP CONSTRAINT item_pkey, ADD PRIMARY KEY (number);
-- part: after
UPDATE item SET id = 9 WHERE number = 30;
-- outcome: needs backfill item~2 (the key changed.*built anew)
-- outcome: tables item~2
