-- All of a partitioned table is truncated through its root.
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
TRUNCATE item;
-- part: after
INSERT INTO item VALUES (7, 1, 'after');
-- outcome: merging item
