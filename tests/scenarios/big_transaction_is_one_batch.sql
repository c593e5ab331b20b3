-- A transaction over every bound is still one batch, and the next one begins a batch of its own.
-- bound: batch_rows = 10
-- bound: batch_bytes = 1000

CREATE TABLE item (id int PRIMARY KEY, name text);
-- step: run
BEGIN;
INSERT INTO item SELECT i, 'name ' || i FROM generate_series(1, 5000) i;
UPDATE item SET name = 'x' WHERE id % 10 = 0;
DELETE FROM item WHERE id % 3 = 0;
COMMIT;
INSERT INTO item VALUES (-1, 'next');
-- step: run
-- expect: batches 2
