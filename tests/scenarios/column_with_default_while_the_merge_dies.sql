-- The merge that follows a column with a default is killed between its commits: history has its rows, and current the
-- column with the default in every row, or neither; what comes of it is the same. Then a second column is added before
-- anything of it was merged.

CREATE TABLE item (id int PRIMARY KEY, name text);
-- step: run
INSERT INTO item SELECT n, 'one' FROM generate_series(1, 4) n;
-- step: run
UPDATE item SET name = 'two' WHERE id = 1;
ALTER TABLE item ADD COLUMN state text DEFAULT 'open';
UPDATE item SET state = 'shut' WHERE id = 2;
-- step: drain
-- step: crash at merge.before_history
ALTER TABLE item ADD COLUMN n int DEFAULT 5;
UPDATE item SET n = NULL WHERE id = 3;
-- step: drain
-- step: crash at merge.after_history
INSERT INTO item VALUES (5, 'five', 'new', 6);
-- step: run
-- expect: merging item
-- expect: current item (id, name, state, n)
--   1 | two  | open | 5
--   2 | one  | shut | 5
--   3 | one  | open | ∅
--   4 | one  | open | 5
--   5 | five | new  | 6
