-- A label is renamed of the enum that a column's domain stands for.
-- part: table
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN feeling AS mood NOT NULL;
CREATE TABLE item (id int PRIMARY KEY, feeling feeling);
-- part: rows
INSERT INTO item SELECT n, 'sad' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET feeling = 'glad' WHERE id = 2;
-- part: alteration
ALTER TYPE mood RENAME VALUE 'sad' TO 'blue';
-- part: after
UPDATE item SET feeling = 'blue' WHERE id = 2;
-- outcome: needs backfill item (older rows read as something else)
