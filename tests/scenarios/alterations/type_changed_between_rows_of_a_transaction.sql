-- A column gets a wider type and another one its default, between rows of one transaction, in which the key moves too.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, size int);
-- part: rows
INSERT INTO item SELECT n, n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET size = 20 WHERE id = 2;
-- part: alteration
BEGIN;
UPDATE item SET id = 9 WHERE id = 1;
ALTER TABLE item ALTER COLUMN id TYPE bigint, ADD COLUMN name text DEFAULT 'none';
UPDATE item SET id = 8000000000 WHERE id = 9;
ALTER TABLE item ALTER COLUMN size TYPE bigint;
UPDATE item SET size = 9000000000, name = 'long' WHERE id = 3;
COMMIT;
-- part: after
DELETE FROM item WHERE id = 8000000000;
INSERT INTO item VALUES (5, 50);
-- outcome: needs backfill item (rewritten)
