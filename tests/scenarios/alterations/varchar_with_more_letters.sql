-- A text may be longer.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name varchar(10));
-- part: rows
INSERT INTO item SELECT n, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
ALTER TABLE item ALTER COLUMN name TYPE varchar(30);
-- part: after
UPDATE item SET name = 'much longer than before' WHERE id = 3;
-- outcome: merging item
