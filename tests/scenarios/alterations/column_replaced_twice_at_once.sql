-- A column is dropped and one of its name comes, twice, and no change shows the table in between: by names alone a change
-- may be of any of the three.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, size int, body text);
-- part: rows
INSERT INTO item SELECT n, n, 'b' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET size = 20 WHERE id = 2;
-- part: alteration
ALTER TABLE item DROP COLUMN size;
ALTER TABLE item ADD COLUMN size int;
UPDATE item SET size = 10 WHERE id = 1;
ALTER TABLE item DROP COLUMN size, ADD COLUMN size int DEFAULT 7;
-- part: after
UPDATE item SET size = 30 WHERE id = 3;
INSERT INTO item (id, size) VALUES (5, 50);
-- outcome: needs backfill item~last (columns were dropped beside others.*built anew)
