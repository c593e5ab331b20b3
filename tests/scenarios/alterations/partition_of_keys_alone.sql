-- A root has whole old rows sent, and a partition its keys alone for a while, without the long value of a key that moves.
-- part: table
CREATE TABLE item (id int, part int, body text STORAGE EXTERNAL, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
ALTER TABLE item REPLICA IDENTITY FULL;
CREATE TABLE item_1 PARTITION OF item FOR VALUES IN (1);
ALTER TABLE item_1 REPLICA IDENTITY FULL;
-- part: rows
INSERT INTO item SELECT n, 1, repeat('b', 3000) FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET id = 20 WHERE id = 2;
-- part: alteration
ALTER TABLE item_1 REPLICA IDENTITY DEFAULT;
UPDATE item SET id = 30 WHERE id = 3;
DELETE FROM item WHERE id = 4;
ALTER TABLE item_1 REPLICA IDENTITY FULL;
-- part: after
INSERT INTO item VALUES (5, 1, 'after');
-- outcome: needs backfill item (another replica identity)
