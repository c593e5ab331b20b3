-- A table is altered among its rows, in a transaction that is prepared and then committed.
-- read again: renamed
-- part: table
CREATE TABLE item (id int PRIMARY KEY, size int, name text);
-- part: rows
INSERT INTO item SELECT n, n, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
BEGIN;
UPDATE item SET size = 11 WHERE id = 1;
ALTER TABLE item RENAME COLUMN name TO title;
ALTER TABLE item ADD COLUMN note text DEFAULT 'none';
UPDATE item SET note = 'within' WHERE id = 3;
INSERT INTO item VALUES (5, 5, 'new');
PREPARE TRANSACTION 'item is altered';
COMMIT PREPARED 'item is altered';
-- part: after
UPDATE item SET title = 'after' WHERE id = 4;
-- outcome: merging item
-- outcome: columns item (id, size, title, note)
