-- A partition moves to another tablespace: it lies in another file, as one that was truncated by its name.
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
ALTER TABLE item_1 SET TABLESPACE elsewhere;
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
-- outcome: needs backfill item (1 partition got new storage by itself)
