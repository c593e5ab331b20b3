-- A number of single precision is widened: older values read with the digits that they have in double precision.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, size real);
-- part: rows
INSERT INTO item SELECT n, n + 0.1 FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET size = 0.3 WHERE id = 2;
-- part: alteration
ALTER TABLE item ALTER COLUMN size TYPE double precision;
-- part: after
UPDATE item SET size = 0.1 WHERE id = 3;
-- outcome: needs backfill item (rewritten)
