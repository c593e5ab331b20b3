-- A backlog is drained batch by batch, each of whole transactions, and merged in order by one plan.
-- bound: batch_rows = 3

CREATE TABLE item (id int PRIMARY KEY, counter int, body text STORAGE EXTERNAL);
-- step: run
INSERT INTO item SELECT i, 0, repeat('a', 4000) FROM generate_series(1, 4) i;
DO $$ BEGIN FOR i IN 1..10 LOOP UPDATE item SET counter = i WHERE id <= 2; COMMIT; END LOOP; END $$;
UPDATE item SET id = 10 WHERE id = 1;
DO $$ BEGIN FOR i IN 1..10 LOOP UPDATE item SET counter = counter + i WHERE id = 10; COMMIT; END LOOP; END $$;
-- step: run
-- expect: batches at least 8
-- expect: current item (id, counter, length(body))
--   2  | 10 | 4000
--   3  | 0  | 4000
--   4  | 0  | 4000
--   10 | 65 | 4000
