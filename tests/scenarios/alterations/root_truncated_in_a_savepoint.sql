-- All of a partitioned table is truncated through its root, below a savepoint: the catalogue has that one's own number,
-- the stream its transaction's, and nothing says that they are one.
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
SAVEPOINT below;
TRUNCATE item;
RELEASE below;
INSERT INTO item VALUES (5, 1, 'within');
COMMIT;
-- part: after
INSERT INTO item VALUES (7, 1, 'after');
-- outcome: needs backfill item (all partitions got new storage)
