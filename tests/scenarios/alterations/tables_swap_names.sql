-- A table takes the place of another one, as tools for alterations without a lock do it.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name text);
CREATE TABLE ghost (id int PRIMARY KEY, name text, size int);
-- part: rows
INSERT INTO item SELECT n, 'old' FROM generate_series(1, 4) n;
INSERT INTO ghost SELECT n, 'copy', n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
UPDATE ghost SET name = 'before' WHERE id = 2;
-- part: alteration
BEGIN;
UPDATE ghost SET size = 20 WHERE id = 2;
ALTER TABLE item RENAME TO item_old;
ALTER TABLE ghost RENAME TO item;
UPDATE item SET size = 21 WHERE id = 2;
COMMIT;
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
UPDATE item_old SET name = 'aside' WHERE id = 4;
-- outcome: merging item
-- outcome: merging ghost
