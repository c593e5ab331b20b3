-- An integer of a table without a key is widened, in which equal rows stand several times.
-- part: table
CREATE TABLE item (name text, size int);
ALTER TABLE item REPLICA IDENTITY FULL;
-- part: rows
INSERT INTO item VALUES ('a', 1), ('a', 1), ('b', 2), ('c', 3);
-- part: before
UPDATE item SET size = 9 WHERE name = 'b';
-- part: alteration
ALTER TABLE item ALTER COLUMN size TYPE bigint;
-- part: after
DELETE FROM item WHERE ctid = (SELECT min(ctid) FROM item WHERE name = 'a');
UPDATE item SET size = 9000000000 WHERE name = 'c';
-- outcome: needs backfill item (rewritten)
