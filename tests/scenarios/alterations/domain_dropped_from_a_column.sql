-- A column of a domain becomes one of its base type, for which no row is written anew: the text of older ones could be another, and that column is read again.
-- part: table
CREATE DOMAIN amount AS int CHECK (VALUE > 0);
CREATE TABLE item (id int PRIMARY KEY, size amount);
-- part: rows
INSERT INTO item SELECT n, n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET size = 9 WHERE id = 2;
-- part: alteration
ALTER TABLE item ALTER COLUMN size TYPE int;
-- part: after
UPDATE item SET size = -7 WHERE id = 3;
-- outcome: needs backfill item (older rows read as something else)
