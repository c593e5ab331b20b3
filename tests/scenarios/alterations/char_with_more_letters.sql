-- A text of a fixed length gets longer: PostgreSQL pads every row anew.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name char(5));
-- part: rows
INSERT INTO item SELECT n, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'new' WHERE id = 2;
-- part: alteration
ALTER TABLE item ALTER COLUMN name TYPE char(9);
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
-- outcome: needs backfill item (rewritten)
