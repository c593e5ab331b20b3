-- A renamed column is followed by its number, in the middle of a batch: both Delta tables give it the new name, in their
-- metadata. Also where two names are swapped in one transaction, a column of the old name comes, and the key is renamed;
-- of tables without key; between runs, and while the merge is late.

CREATE TABLE item (id int PRIMARY KEY, colour text, size text, body text);
ALTER TABLE item ALTER body SET STORAGE EXTERNAL;
CREATE TABLE bag (name text, kind text);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE quiet (id int PRIMARY KEY, name text);
-- step: run
INSERT INTO item SELECT n, 'red', 'big', repeat('b', 3000) FROM generate_series(1, 5) n;
INSERT INTO bag VALUES ('a', 'x'), ('a', 'x'), ('b', 'y');
INSERT INTO quiet VALUES (1, 'one');
-- step: run
UPDATE item SET colour = 'old shape' WHERE id = 2;
UPDATE item SET id = 30 WHERE id = 3;
ALTER TABLE item RENAME COLUMN body TO text;
UPDATE item SET colour = 'between' WHERE id = 4;
BEGIN;
ALTER TABLE item RENAME COLUMN colour TO x;
ALTER TABLE item RENAME COLUMN size TO colour;
ALTER TABLE item RENAME COLUMN x TO size;
UPDATE item SET colour = 'small' WHERE id = 1;
COMMIT;
ALTER TABLE item RENAME COLUMN id TO number;
ALTER TABLE item ADD COLUMN id int DEFAULT 7;
UPDATE item SET number = 40 WHERE number = 4;
UPDATE item SET id = NULL WHERE number = 5;
ALTER TABLE bag RENAME COLUMN kind TO sort;
DELETE FROM bag WHERE name = 'b';
UPDATE bag SET sort = 'z' WHERE ctid = (SELECT min(ctid) FROM bag);
-- step: run
-- expect: merging item
-- expect: merging bag
-- expect: merging quiet
-- expect: current item (number, size, colour, length(text), id)
--   1  | red       | small | 3000 | 7
--   2  | old shape | big   | 3000 | 7
--   30 | red       | big   | 3000 | 7
--   40 | between   | big   | 3000 | 7
--   5  | red       | big   | 3000 | ∅
ALTER TABLE item RENAME COLUMN text TO body;
UPDATE item SET body = 'back' WHERE number = 1;
ALTER TABLE quiet RENAME COLUMN name TO title;
UPDATE quiet SET title = 'two';
DELETE FROM bag;
-- step: run
-- expect: merging item
-- expect: merging quiet
-- expect: columns item (number, size, colour, body, id)
-- expect: columns quiet (id, title)
