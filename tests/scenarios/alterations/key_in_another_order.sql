-- The key's columns change places in their index.
-- part: table
CREATE TABLE item (a int, b int, name text, PRIMARY KEY (a, b));
-- part: rows
INSERT INTO item SELECT n, 10 * n, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE a = 2;
-- part: alteration
ALTER TABLE item DROP CONSTRAINT item_pkey, ADD PRIMARY KEY (b, a);
-- part: after
UPDATE item SET b = 31 WHERE a = 3;
DELETE FROM item WHERE a = 4;
-- outcome: needs backfill item~2 (the key changed.*built anew)
-- outcome: tables item~2
