-- A partitioned table is one table, its root: rows of all leaves, also when an update moves a row to another leaf.
-- capture: sale

CREATE TABLE sale (id int, region text, amount int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE sale_north PARTITION OF sale FOR VALUES IN ('north');
CREATE TABLE sale_other PARTITION OF sale DEFAULT PARTITION BY HASH (id);
CREATE TABLE sale_other_0 PARTITION OF sale_other FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE sale_other_1 PARTITION OF sale_other FOR VALUES WITH (MODULUS 2, REMAINDER 1);
-- step: run
INSERT INTO sale SELECT i, CASE WHEN i % 2 = 0 THEN 'north' ELSE 'south' END, i FROM generate_series(1, 8) i;
INSERT INTO sale_north VALUES (100, 'north', 1);
-- step: run
UPDATE sale SET region = 'north' WHERE id = 1;
UPDATE sale SET amount = 0 WHERE region = 'south';
DELETE FROM sale WHERE id = 2;
-- step: run
-- expect: tables sale
TRUNCATE sale;
INSERT INTO sale VALUES (1, 'west', 1);
-- step: run
-- expect: current sale (id, region, amount)
--   1 | west | 1
