-- An enum becomes a text, and every label another one: PostgreSQL writes every row anew.
-- part: table
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE item (id int PRIMARY KEY, mood mood);
-- part: rows
INSERT INTO item SELECT n, 'sad' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET mood = 'glad' WHERE id = 2;
-- part: alteration
ALTER TABLE item ALTER COLUMN mood TYPE text USING upper(mood::text);
-- part: after
UPDATE item SET mood = 'anything' WHERE id = 3;
-- outcome: needs backfill item (rewritten)
