-- A label of an enum is renamed that stands in a composite type alone.
-- part: table
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TYPE day AS (number int, mood mood);
CREATE TABLE item (id int PRIMARY KEY, day day);
-- part: rows
INSERT INTO item SELECT n, ROW(n, 'sad')::day FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET day = ROW(2, 'glad')::day WHERE id = 2;
-- part: alteration
ALTER TYPE mood RENAME VALUE 'sad' TO 'blue';
-- part: after
UPDATE item SET day = ROW(3, 'blue')::day WHERE id = 3;
-- outcome: needs backfill item (older rows read as something else)
