-- A transaction that alters a table is prepared. Until it is committed other tables are captured and the slot moves on;
-- then each of its changes is read by the definition that the table had at that moment. One that is rolled back changes
-- nothing.
-- alone

CREATE TABLE item (id int PRIMARY KEY, size int, name text);
CREATE TABLE other (id int PRIMARY KEY, name text);
-- step: run
INSERT INTO item SELECT n, n, 'old' FROM generate_series(1, 4) n;
INSERT INTO other VALUES (1, 'old');
-- step: run
BEGIN;
UPDATE item SET size = 11 WHERE id = 1;
ALTER TABLE item RENAME COLUMN name TO title;
ALTER TABLE item ADD COLUMN note text DEFAULT 'none';
UPDATE item SET note = 'within' WHERE id = 3;
INSERT INTO item VALUES (5, 5, 'new');
PREPARE TRANSACTION 'item is altered';
INSERT INTO other VALUES (2, 'meanwhile');
-- step: drain
-- step: merge
-- step: confirm
-- expect: confirmed everything
-- expect: current other (id, name)
--   1 | old
--   2 | meanwhile
-- expect: current item (id, name)
--   1 | old
--   2 | old
--   3 | old
--   4 | old
UPDATE other SET name = 'before it is committed' WHERE id = 1;
COMMIT PREPARED 'item is altered';
UPDATE item SET title = 'after' WHERE id = 4;
-- step: run
-- expect: merging item
-- expect: current item (id, size, title, note)
--   1 | 11 | old | none
--   2 | 2 | old | none
--   3 | 3 | old | within
--   4 | 4 | after | none
--   5 | 5 | new | none
BEGIN;
UPDATE item SET note = 'undone' WHERE id = 1;
ALTER TABLE item DROP COLUMN note;
PREPARE TRANSACTION 'item is altered';
INSERT INTO other VALUES (3, 'meanwhile');
-- step: drain
ROLLBACK PREPARED 'item is altered';
UPDATE item SET note = 'stays' WHERE id = 2;
-- step: run
-- expect: merging item
BEGIN;
UPDATE item SET size = 22 WHERE id = 2;
ALTER TABLE item DROP COLUMN size;
INSERT INTO item VALUES (6, 'without a size');
PREPARE TRANSACTION 'item is altered';
INSERT INTO other VALUES (4, 'meanwhile');
-- step: drain
COMMIT PREPARED 'item is altered';
-- step: run
-- expect: merging item
-- expect: columns item (id, size, title, note)
