-- A table loses its primary key under REPLICA IDENTITY FULL: its rows are a multiset from there on.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, number int);
ALTER TABLE item REPLICA IDENTITY FULL;
-- part: rows
INSERT INTO item SELECT n, 10 * n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET number = 21 WHERE id = 2;
-- part: alteration
ALTER TABLE item DROP CONSTRAINT item_pkey;
-- part: after
INSERT INTO item VALUES (4, 40);
DELETE FROM item WHERE id = 1;
-- outcome: needs backfill item~2 (the key changed.*built anew)
-- outcome: tables item~2
