-- A label of an enum is renamed that only stands in arrays and behind a domain.
-- part: table
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN lasting AS mood;
CREATE TABLE item (id int PRIMARY KEY, moods mood[], mood lasting);
-- part: rows
INSERT INTO item SELECT n, '{sad,glad}', 'sad' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET mood = 'glad' WHERE id = 2;
-- part: alteration
ALTER TYPE mood RENAME VALUE 'sad' TO 'blue';
-- part: after
UPDATE item SET moods = '{blue}' WHERE id = 3;
-- outcome: needs backfill item (older rows read as something else)
