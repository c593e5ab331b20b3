-- A column is dropped from a table without a key.
-- part: table
CREATE TABLE item (name text, size int);
ALTER TABLE item REPLICA IDENTITY FULL;
-- part: rows
INSERT INTO item VALUES ('a', 1), ('a', 2), ('b', 3), ('c', 4);
-- part: before
UPDATE item SET name = 'bb' WHERE name = 'b';
-- part: alteration
ALTER TABLE item DROP COLUMN size;
-- part: after
DELETE FROM item WHERE ctid = (SELECT min(ctid) FROM item WHERE name = 'a');
UPDATE item SET name = 'cc' WHERE name = 'c';
INSERT INTO item VALUES ('d');
-- outcome: merging item
