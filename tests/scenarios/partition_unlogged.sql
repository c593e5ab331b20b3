-- While a partition is UNLOGGED its changes are in no stream. No backfill takes the mark away before it ends, and the
-- backfill behind it repairs the table.
-- capture: item
-- alone
CREATE TABLE item (id int, part int, name text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE item_1 PARTITION OF item FOR VALUES IN (1);
CREATE TABLE item_2 PARTITION OF item FOR VALUES IN (2) PARTITION BY RANGE (id);
CREATE TABLE item_2_low PARTITION OF item_2 FOR VALUES FROM (0) TO (100);
-- step: run
INSERT INTO item SELECT n, 1 + n % 2, 'old' FROM generate_series(1, 6) n;
-- step: run
-- expect: merging item

-- No preflight has seen it yet.
ALTER TABLE item_2_low SET UNLOGGED;
UPDATE item SET name = 'unlogged' WHERE id = 1;
-- step: plan
-- step: read
UPDATE item SET name = 'behind the chunk' WHERE id = 3;
-- step: end backfill
-- expect: needs backfill item (item_2_low is unlogged)
-- step: backfill wanted
-- expect: needs backfill item (item_2_low is unlogged)
UPDATE item SET name = 'lost again' WHERE id = 5;
-- step: repair
-- expect: needs backfill item (item_2_low is unlogged)

UPDATE item SET name = 'beside' WHERE id = 2;
-- step: run
-- expect: marked item (item_2_low is unlogged)

ALTER TABLE item_2_low SET LOGGED;
UPDATE item SET name = 'behind it' WHERE id = 4;
-- step: run
-- expect: needs backfill item ()
-- step: backfill wanted
-- expect: merging item
UPDATE item SET name = 'in the stream' WHERE id = 1;
-- step: run
-- expect: merging item
