-- A domain gets a default and is not null, and a column of it comes.
-- part: table
CREATE DOMAIN amount AS int;
CREATE TABLE item (id int PRIMARY KEY, size amount);
-- part: rows
INSERT INTO item SELECT n, n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET size = 9 WHERE id = 2;
-- part: alteration
ALTER DOMAIN amount SET DEFAULT 7;
ALTER DOMAIN amount SET NOT NULL;
ALTER TABLE item ADD COLUMN number amount;
-- part: after
UPDATE item SET number = 3 WHERE id = 3;
INSERT INTO item (id) VALUES (5);
-- outcome: needs backfill item (rewritten)
