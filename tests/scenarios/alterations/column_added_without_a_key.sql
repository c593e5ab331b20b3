-- A column with a constant default is added to a table without a key.
-- part: table
CREATE TABLE item (name text, size int);
ALTER TABLE item REPLICA IDENTITY FULL;
-- part: rows
INSERT INTO item VALUES ('a', 1), ('a', 1), ('b', 2), ('c', 3);
-- part: before
UPDATE item SET size = 9 WHERE name = 'b';
-- part: alteration
ALTER TABLE item ADD COLUMN state text DEFAULT 'open';
-- part: after
DELETE FROM item WHERE ctid = (SELECT min(ctid) FROM item WHERE name = 'a');
UPDATE item SET state = 'shut' WHERE name = 'c';
INSERT INTO item VALUES ('d', 4, NULL);
-- outcome: merging item
