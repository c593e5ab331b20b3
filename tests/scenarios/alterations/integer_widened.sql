-- An integer is widened: PostgreSQL writes every row anew, and USING could have changed any of them.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, size smallint);
-- part: rows
INSERT INTO item SELECT n, n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET size = 9 WHERE id = 2;
-- part: alteration
ALTER TABLE item ALTER COLUMN size TYPE bigint;
-- part: after
UPDATE item SET size = 9000000000 WHERE id = 3;
-- outcome: needs backfill item (rewritten)
