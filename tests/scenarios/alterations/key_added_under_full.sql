-- A table without a key, a multiset so far, gets one.
-- part: table
CREATE TABLE item (id int NOT NULL, number int);
ALTER TABLE item REPLICA IDENTITY FULL;
-- part: rows
INSERT INTO item SELECT n, 10 * n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET number = 21 WHERE id = 2;
-- part: alteration
ALTER TABLE item ADD PRIMARY KEY (id);
-- part: after
UPDATE item SET id = 9 WHERE id = 3;
DELETE FROM item WHERE id = 4;
-- outcome: needs backfill item~2 (the key changed.*built anew)
-- outcome: tables item~2
