-- A partitioned table with rows is attached as a partition.
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
CREATE TABLE item_3 (id int, part int, name text, PRIMARY KEY (id, part)) PARTITION BY RANGE (id);
CREATE TABLE item_3_low PARTITION OF item_3 FOR VALUES FROM (0) TO (10);
CREATE TABLE item_3_high PARTITION OF item_3 FOR VALUES FROM (10) TO (20);
INSERT INTO item_3 VALUES (9, 3, 'there'), (19, 3, 'there');
ALTER TABLE item ATTACH PARTITION item_3 FOR VALUES IN (3);
-- part: after
UPDATE item SET name = 'after' WHERE id IN (3, 9);
UPDATE item SET id = 8 WHERE id = 19;
-- outcome: needs backfill item (attached)
