-- A label of an enum is renamed: older rows read as another text, of which the stream says nothing.
-- part: table
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE item (id int PRIMARY KEY, mood mood);
-- part: rows
INSERT INTO item SELECT n, 'sad' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET mood = 'glad' WHERE id = 2;
-- part: alteration
ALTER TYPE mood RENAME VALUE 'sad' TO 'blue';
-- part: after
UPDATE item SET mood = 'blue' WHERE id = 2;
-- outcome: needs backfill item (older rows read as something else)
