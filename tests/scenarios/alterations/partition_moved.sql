-- A partition goes from one table to another.
-- capture: item, other
-- part: table
CREATE TABLE item (id int, part int, name text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE item_1 PARTITION OF item FOR VALUES IN (1);
CREATE TABLE item_2 PARTITION OF item FOR VALUES IN (2);
CREATE TABLE other (id int, part int, name text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE other_3 PARTITION OF other FOR VALUES IN (3);
-- part: rows
INSERT INTO item SELECT n, 1 + n % 2, 'old' FROM generate_series(1, 4) n;
INSERT INTO other VALUES (10, 3, 'other');
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
ALTER TABLE item DETACH PARTITION item_1;
ALTER TABLE other ATTACH PARTITION item_1 FOR VALUES IN (1);
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
UPDATE other SET name = 'after' WHERE part = 1;
-- outcome: needs backfill item (detached or dropped)
-- outcome: needs backfill other (attached)
