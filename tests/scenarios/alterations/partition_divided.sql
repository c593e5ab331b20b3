-- A partition is divided: its rows are inserted into two new ones, and it is dropped, in one transaction.
-- part: table
CREATE TABLE item (id int, part int, body text STORAGE EXTERNAL, PRIMARY KEY (id, part)) PARTITION BY RANGE (part);
CREATE TABLE item_all PARTITION OF item FOR VALUES FROM (0) TO (100);
-- part: rows
INSERT INTO item SELECT n, 20 * n, repeat('b', 3000) FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET part = part + 1 WHERE id = 2;
-- part: alteration
BEGIN;
ALTER TABLE item DETACH PARTITION item_all;
CREATE TABLE item_low PARTITION OF item FOR VALUES FROM (0) TO (50);
CREATE TABLE item_high PARTITION OF item FOR VALUES FROM (50) TO (100);
INSERT INTO item SELECT * FROM item_all WHERE id <> 4;
DROP TABLE item_all;
UPDATE item SET part = 90 WHERE id = 1;
COMMIT;
-- part: after
UPDATE item SET id = 30 WHERE id = 3;
-- outcome: needs backfill item (created and filled in one transaction)
