-- A root without a key has whole old rows sent, and a partition a column of its own choice alone for a while.
-- part: table
CREATE TABLE item (id int, part int, name text) PARTITION BY LIST (part);
ALTER TABLE item REPLICA IDENTITY FULL;
CREATE TABLE item_1 PARTITION OF item FOR VALUES IN (1);
CREATE TABLE item_2 PARTITION OF item FOR VALUES IN (2);
ALTER TABLE item_1 REPLICA IDENTITY FULL, ALTER COLUMN id SET NOT NULL;
CREATE UNIQUE INDEX item_1_id ON item_1 (id);
ALTER TABLE item_2 REPLICA IDENTITY FULL;
-- part: rows
INSERT INTO item SELECT n, 1 + n % 2, 'old' FROM generate_series(1, 6) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
ALTER TABLE item_1 REPLICA IDENTITY USING INDEX item_1_id;
DELETE FROM item WHERE id = 2;
UPDATE item SET name = 'between' WHERE id = 4;
UPDATE item SET id = 60 WHERE id = 6;
DELETE FROM item WHERE id = 1;
ALTER TABLE item_1 REPLICA IDENTITY FULL;
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
-- outcome: needs backfill item (another replica identity)
