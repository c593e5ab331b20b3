-- A numeric column loses its precision: its values are texts from there on, in a table that is built anew.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, price numeric(6,2));
-- part: rows
INSERT INTO item SELECT n, n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET price = 9.25 WHERE id = 2;
-- part: alteration
ALTER TABLE item ALTER COLUMN price TYPE numeric;
-- part: after
UPDATE item SET price = 1e40 WHERE id = 3;
-- outcome: needs backfill item~2 (changed from.*built anew)
-- outcome: tables item~2
