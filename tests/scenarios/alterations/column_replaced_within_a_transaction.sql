-- A column is dropped and one of its name comes, in one transaction with rows before, between and behind.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, size int, body text);
-- part: rows
INSERT INTO item SELECT n, n, 'b' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET size = 20 WHERE id = 2;
-- part: alteration
BEGIN;
UPDATE item SET size = 11 WHERE id = 1;
ALTER TABLE item DROP COLUMN size;
UPDATE item SET body = 'between' WHERE id = 2;
ALTER TABLE item ADD COLUMN size int;
UPDATE item SET size = 33 WHERE id = 3;
COMMIT;
-- part: after
INSERT INTO item (id, size) VALUES (5, 50);
-- outcome: needs backfill item~last (columns were dropped beside others.*built anew)
