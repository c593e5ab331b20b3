-- A numeric column gets more digits, which no row is written anew for.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, price numeric(6,2));
-- part: rows
INSERT INTO item SELECT n, n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET price = 9.25 WHERE id = 2;
-- part: alteration
ALTER TABLE item ALTER COLUMN price TYPE numeric(12,2);
-- part: after
UPDATE item SET price = 9000000.25 WHERE id = 3;
-- outcome: merging item
