-- A table is made of a query, and becomes a captured one; another takes all of its rows and its name.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name text);
-- part: rows
INSERT INTO item SELECT n, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
BEGIN;
CREATE TABLE made AS SELECT id, upper(name) AS name FROM item;
ALTER TABLE made ADD PRIMARY KEY (id);
DROP TABLE item;
ALTER TABLE made RENAME TO item;
COMMIT;
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
-- outcome: marked item~2 ()
