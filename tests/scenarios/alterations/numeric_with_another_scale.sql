-- A numeric column gets more digits on both sides of the point: PostgreSQL writes every row anew.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, price numeric(6,2));
-- part: rows
INSERT INTO item SELECT n, n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET price = 9.25 WHERE id = 2;
-- part: alteration
ALTER TABLE item ALTER COLUMN price TYPE numeric(12,4);
-- part: after
UPDATE item SET price = 9000000.2525 WHERE id = 3;
-- outcome: needs backfill item (rewritten)
