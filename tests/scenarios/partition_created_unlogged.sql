-- A partition that is created UNLOGGED keeps its root out of the capture until it is detached or dropped.
-- capture: item
-- alone
CREATE TABLE item (id int, part int, name text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE item_1 PARTITION OF item FOR VALUES IN (1);
-- step: run
INSERT INTO item SELECT n, 1, 'old' FROM generate_series(1, 4) n;
-- step: run
CREATE UNLOGGED TABLE item_2 PARTITION OF item FOR VALUES IN (2);
UPDATE item SET part = 2 WHERE id = 2;
-- step: drain
-- expect: needs backfill item (item_2 is unlogged)
-- step: backfill wanted
-- expect: needs backfill item (item_2 is unlogged)
-- step: run
-- expect: marked item (item_2 is unlogged)
DROP TABLE item_2;
UPDATE item SET name = 'behind it' WHERE id = 4;
-- step: run
-- expect: needs backfill item ()
-- step: backfill wanted
-- expect: merging item
UPDATE item SET name = 'new' WHERE id = 3;
-- step: run
-- expect: merging item
