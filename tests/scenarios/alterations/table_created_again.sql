-- A table is dropped, and another one of its name is created.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name text);
-- part: rows
INSERT INTO item SELECT n, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
BEGIN;
DROP TABLE item;
CREATE TABLE item (id int PRIMARY KEY, name text);
COMMIT;
-- part: after
INSERT INTO item VALUES (7, 'new');
-- outcome: marked item~2 ()
