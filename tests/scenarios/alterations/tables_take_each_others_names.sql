-- Two tables take each other's names, with changes of both before and behind in the same transaction.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name text);
CREATE TABLE other (id int PRIMARY KEY, name text);
-- part: rows
INSERT INTO item SELECT n, 'item' FROM generate_series(1, 4) n;
INSERT INTO other SELECT n, 'other' FROM generate_series(3, 6) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
BEGIN;
DELETE FROM item WHERE id = 1;
UPDATE other SET name = 'first' WHERE id = 3;
ALTER TABLE item RENAME TO tmp;
ALTER TABLE other RENAME TO item;
ALTER TABLE tmp RENAME TO other;
UPDATE item SET name = 'behind' WHERE id = 4;
DELETE FROM other WHERE id = 4;
COMMIT;
-- part: after
INSERT INTO item VALUES (1, 'new');
INSERT INTO other VALUES (6, 'new');
-- outcome: merging item
-- outcome: merging other
