-- A partition leaves one captured table and joins another, with its rows.
-- no chunk: both tables are marked, and one of them is not merged behind it
-- part: table
CREATE TABLE item (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE item_1 PARTITION OF item FOR VALUES IN (1);
CREATE TABLE item_2 PARTITION OF item FOR VALUES IN (2);
CREATE TABLE kept (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE kept_3 PARTITION OF kept FOR VALUES IN (3);
-- part: rows
INSERT INTO item SELECT n, 1 + n % 2 FROM generate_series(1, 4) n;
INSERT INTO kept SELECT n, 3 FROM generate_series(11, 14) n;
-- part: before
UPDATE item SET id = 20 WHERE id = 2;
-- part: alteration
BEGIN;
DELETE FROM item WHERE id = 3;
ALTER TABLE item DETACH PARTITION item_2;
ALTER TABLE kept ATTACH PARTITION item_2 FOR VALUES IN (2);
UPDATE kept SET id = 99 WHERE part = 2;
COMMIT;
-- part: after
INSERT INTO kept VALUES (5, 2);
INSERT INTO item VALUES (6, 1);
-- outcome: needs backfill item (detached or dropped)
-- outcome: needs backfill kept (attached with what it held)
