-- All partitions are written while they are UNLOGGED, in the transaction that truncated their root.
-- capture: item
-- part: table
CREATE TABLE item (id int, part int, name text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE item_1 PARTITION OF item FOR VALUES IN (1);
CREATE TABLE item_2 PARTITION OF item FOR VALUES IN (2);
-- part: rows
INSERT INTO item SELECT n, 1 + n % 2, 'old' FROM generate_series(1, 6) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
BEGIN;
TRUNCATE item;
ALTER TABLE item_1 SET UNLOGGED;
ALTER TABLE item_2 SET UNLOGGED;
INSERT INTO item SELECT n, 1 + n % 2, 'unlogged' FROM generate_series(1, 4) n;
ALTER TABLE item_1 SET LOGGED;
ALTER TABLE item_2 SET LOGGED;
COMMIT;
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
-- outcome: needs backfill item (UNLOGGED)
