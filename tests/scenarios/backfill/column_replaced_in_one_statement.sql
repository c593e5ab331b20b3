-- A column that is not the last is dropped and another one of its name is added, in one statement, and nothing is written in
-- between. Changes whose columns are in doubt lie in a table of their own, and the table is built anew behind them. No
-- chunk is taken for one of the dropped column, though its name is
-- the same: whatever change comes behind the backfill, each value stands under the new column.
-- alone

CREATE TABLE item (id int PRIMARY KEY, s text, n int);
CREATE TABLE heap (id int, s text, n int);
ALTER TABLE heap REPLICA IDENTITY FULL;
-- step: run
INSERT INTO item SELECT n, 's' || n, n FROM generate_series(28, 31) n;
INSERT INTO heap SELECT n, 's' || n, n FROM generate_series(28, 31) n;
-- step: run
ALTER TABLE item DROP s, ADD s varchar(10);
ALTER TABLE heap DROP s, ADD s varchar(10);
UPDATE item SET s = 'neu' WHERE id = 30;
UPDATE heap SET s = 'neu' WHERE id = 30;
-- step: run
-- expect: needs backfill item~3 (not certain.*built anew)
-- expect: needs backfill heap~3 (not certain.*built anew)
-- step: run
-- step: backfill wanted
UPDATE item SET n = 0 WHERE id = 31;
UPDATE heap SET n = 0 WHERE id = 31;
-- step: run
-- expect: merging item~3
-- expect: merging heap~3
-- step: backfill again
