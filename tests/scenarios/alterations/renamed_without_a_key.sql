-- A column of a table without a key is renamed.
-- read again: renamed
-- part: table
CREATE TABLE item (name text, size int);
ALTER TABLE item REPLICA IDENTITY FULL;
-- part: rows
INSERT INTO item VALUES ('a', 1), ('a', 1), ('b', 2);
-- part: before
UPDATE item SET size = 3 WHERE name = 'b';
-- part: alteration
ALTER TABLE item RENAME COLUMN size TO length;
-- part: after
DELETE FROM item WHERE ctid = (SELECT min(ctid) FROM item WHERE name = 'a');
INSERT INTO item VALUES ('c', 4);
-- outcome: merging item
