-- A column goes from a domain to one of a wider base type: PostgreSQL writes every row anew.
-- part: table
CREATE DOMAIN amount AS int;
CREATE DOMAIN large_amount AS bigint;
CREATE TABLE item (id int PRIMARY KEY, size amount);
-- part: rows
INSERT INTO item SELECT n, n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET size = 9 WHERE id = 2;
-- part: alteration
ALTER TABLE item ALTER COLUMN size TYPE large_amount;
-- part: after
UPDATE item SET size = 9000000000 WHERE id = 3;
-- outcome: needs backfill item (rewritten)
