-- The root is truncated, and behind new rows a partition by its name, in one transaction: the partition keeps its storage.
-- capture: item
-- part: table
CREATE TABLE item (id int, part int, name text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE item_1 PARTITION OF item FOR VALUES IN (1);
CREATE TABLE item_2 PARTITION OF item FOR VALUES IN (2);
-- part: rows
INSERT INTO item SELECT n, 1 + n % 2, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
BEGIN;
TRUNCATE item;
INSERT INTO item VALUES (5, 1, 'kept'), (6, 2, 'truncated');
TRUNCATE item_2;
COMMIT;
-- part: after
INSERT INTO item VALUES (7, 2, 'after');
-- outcome: needs backfill item (truncated and filled in one transaction)
