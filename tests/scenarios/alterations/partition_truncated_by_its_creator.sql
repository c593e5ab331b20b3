-- A partition is created, filled and truncated by its name in one transaction: it keeps its storage, and the stream has the rows.
-- capture: item
-- part: table
CREATE TABLE item (id int, part int, name text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE item_1 PARTITION OF item FOR VALUES IN (1);
-- part: rows
INSERT INTO item SELECT n, 1, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
BEGIN;
CREATE TABLE item_2 PARTITION OF item FOR VALUES IN (2);
INSERT INTO item VALUES (5, 2, 'truncated'), (6, 2, 'truncated');
TRUNCATE item_2;
COMMIT;
-- part: after
INSERT INTO item VALUES (7, 2, 'after');
-- outcome: needs backfill item (created and filled in one transaction)
