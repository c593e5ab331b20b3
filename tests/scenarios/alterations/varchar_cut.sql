-- A text gets a limit, and what is longer is cut.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name varchar(30));
-- part: rows
INSERT INTO item SELECT n, 'longer than four' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
ALTER TABLE item ALTER COLUMN name TYPE varchar(4) USING left(name, 4);
-- part: after
UPDATE item SET name = 'aft' WHERE id = 3;
-- outcome: needs backfill item (rewritten)
