-- The key's column is renamed, and another one gets its name.
-- no chunk: a backfill whose ranges are of the old key is closed
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name text);
-- part: rows
INSERT INTO item SELECT n, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET id = 20 WHERE id = 2;
-- part: alteration
ALTER TABLE item RENAME COLUMN id TO number;
ALTER TABLE item ADD COLUMN id text;
-- part: after
UPDATE item SET id = 'after' WHERE number = 3;
UPDATE item SET number = 40 WHERE number = 4;
INSERT INTO item VALUES (5, 'new', 'new');
-- outcome: merging item
