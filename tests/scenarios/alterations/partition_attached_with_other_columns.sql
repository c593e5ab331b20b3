-- A partition is attached whose columns stand in another order, behind one that was dropped.
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
CREATE TABLE item_3 (gone int, name text, part int NOT NULL, id int NOT NULL, PRIMARY KEY (part, id));
ALTER TABLE item_3 DROP COLUMN gone;
INSERT INTO item_3 VALUES ('there', 3, 9), ('there', 3, 10);
ALTER TABLE item_3 DROP CONSTRAINT item_3_pkey, ADD PRIMARY KEY (id, part);
ALTER TABLE item ATTACH PARTITION item_3 FOR VALUES IN (3);
-- part: after
UPDATE item SET name = 'after' WHERE id IN (3, 9);
DELETE FROM item WHERE id = 10;
INSERT INTO item VALUES (11, 3, 'new');
-- outcome: needs backfill item (attached)
