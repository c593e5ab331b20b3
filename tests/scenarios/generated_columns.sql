-- From PostgreSQL 18 on the publication carries stored generated columns: they are columns of the target like others.

CREATE TABLE line (id int PRIMARY KEY, price numeric(8,2), pieces int, total numeric(12,2) GENERATED ALWAYS AS (price * pieces) STORED);
-- step: run
INSERT INTO line VALUES (1, 2.50, 4), (2, 1, 1);
UPDATE line SET pieces = 3 WHERE id = 2;
-- step: run
-- expect: current line (id, price, pieces, total)
--   1 | 2.50 | 4 | 10.00
--   2 | 1.00 | 3 | 3.00
