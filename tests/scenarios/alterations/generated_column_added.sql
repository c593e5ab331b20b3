-- A stored generated column is added: every row is written anew, and the stream shows none of them.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, size int);
-- part: rows
INSERT INTO item SELECT n, n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET size = 9 WHERE id = 2;
-- part: alteration
ALTER TABLE item ADD COLUMN twice int GENERATED ALWAYS AS (2 * size) STORED;
-- part: after
UPDATE item SET size = 7 WHERE id = 3;
INSERT INTO item VALUES (5, 5);
-- outcome: needs backfill item (rewritten)
