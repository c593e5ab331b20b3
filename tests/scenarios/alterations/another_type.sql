-- A column becomes of a type that the target's column cannot take.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, size text);
-- part: rows
INSERT INTO item SELECT n, n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET size = '9' WHERE id = 2;
-- part: alteration
ALTER TABLE item ALTER COLUMN size TYPE int USING size::int;
-- part: after
UPDATE item SET size = 7 WHERE id = 3;
-- outcome: needs backfill item~2 (changed from.*built anew)
-- outcome: tables item~2
