-- The elements of an array become of a wider type, which Delta has no widening for: the table is built anew.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, sizes int[]);
-- part: rows
INSERT INTO item SELECT n, ARRAY[n, -n] FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET sizes = '{9}' WHERE id = 2;
-- part: alteration
ALTER TABLE item ALTER COLUMN sizes TYPE bigint[];
-- part: after
UPDATE item SET sizes = '{9000000000}' WHERE id = 3;
-- outcome: needs backfill item~2 (changed from.*built anew)
-- outcome: tables item~2
