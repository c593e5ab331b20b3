-- A partition is created, filled and dropped: the stream has its rows, and not that they are gone.
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
CREATE TABLE item_3 PARTITION OF item FOR VALUES IN (3);
INSERT INTO item VALUES (9, 3, 'gone');
DROP TABLE item_3;
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
-- outcome: needs backfill item (partition)
