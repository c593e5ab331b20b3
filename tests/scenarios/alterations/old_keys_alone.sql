-- A table with a key sends the keys of old rows alone from here on, and long values no more that do not change.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name text, body text STORAGE EXTERNAL);
ALTER TABLE item REPLICA IDENTITY FULL;
-- part: rows
INSERT INTO item SELECT n, 'old', repeat('b', 3000) FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
ALTER TABLE item REPLICA IDENTITY DEFAULT;
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
UPDATE item SET id = 40 WHERE id = 4;
-- outcome: merging item
