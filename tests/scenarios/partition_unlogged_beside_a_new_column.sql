-- A partition is UNLOGGED and written between two runs, and a column with a default comes: the backfill reads all of it.
-- capture: item
CREATE TABLE item (id int, part int, name text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE item_1 PARTITION OF item FOR VALUES IN (1);
CREATE TABLE item_2 PARTITION OF item FOR VALUES IN (2) PARTITION BY LIST (part);
CREATE TABLE item_2_2 PARTITION OF item_2 FOR VALUES IN (2);
-- step: run
INSERT INTO item SELECT n, 1 + n % 2, 'old' FROM generate_series(1, 6) n;
-- step: run
ALTER TABLE item_2_2 SET UNLOGGED;
UPDATE item SET name = 'unlogged' WHERE id IN (1, 5);
ALTER TABLE item_2_2 SET LOGGED;
ALTER TABLE item ADD COLUMN size int DEFAULT 7;
UPDATE item SET name = 'after' WHERE id = 3;
-- step: run
-- expect: needs backfill item ("size" added)
-- step: backfill wanted
-- expect: merging item
