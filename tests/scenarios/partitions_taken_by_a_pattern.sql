-- A pattern that matches a root and its leaves captures the root alone.

CREATE TABLE sale (id int PRIMARY KEY, amount int) PARTITION BY RANGE (id);
CREATE TABLE sale_low PARTITION OF sale FOR VALUES FROM (0) TO (100);
CREATE TABLE sale_high PARTITION OF sale FOR VALUES FROM (100) TO (200);
-- step: run
INSERT INTO sale VALUES (1, 1), (150, 2);
UPDATE sale SET id = 151 WHERE id = 1;
-- step: run
-- expect: tables sale
-- expect: current sale (id, amount)
--   150 | 2
--   151 | 1
