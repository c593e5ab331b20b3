-- The key gets another collation, and its index another order; no row is written anew.
-- no chunk: a backfill whose ranges are of the old order is closed
-- part: table
CREATE TABLE item (id text COLLATE "C" PRIMARY KEY, size int);
-- part: rows
INSERT INTO item VALUES ('a', 1), ('B', 2), ('c', 3), ('D', 4);
-- part: before
UPDATE item SET size = 9 WHERE id = 'B';
-- part: alteration
ALTER TABLE item ALTER COLUMN id TYPE text COLLATE pg_c_utf8;
-- part: after
UPDATE item SET id = 'd' WHERE id = 'D';
UPDATE item SET size = 7 WHERE id = 'c';
-- outcome: needs backfill item (its key was made anew)
