-- A table is emptied and filled by COPY FREEZE, whose rows every snapshot sees.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name text);
-- part: rows
INSERT INTO item SELECT n, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
BEGIN;
TRUNCATE item;
COPY item FROM PROGRAM 'printf "3,copied\n7,copied\n"' WITH (FORMAT csv, FREEZE);
COMMIT;
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
-- outcome: merging item
