-- A dropped column is followed: it stays in both tables, and is NULL in every row that is written from there on. Between
-- two runs, and in the middle of a batch, with values of it that are not sent since they did not change.

CREATE TABLE item (id int PRIMARY KEY, size int, body text, name text);
ALTER TABLE item ALTER body SET STORAGE EXTERNAL;
CREATE TABLE neighbour (id int PRIMARY KEY);
-- step: run
INSERT INTO item SELECT n, n, repeat('b', 3000), 'red' FROM generate_series(1, 5) n;
-- step: run
ALTER TABLE item DROP COLUMN size;
INSERT INTO item (id, name) VALUES (6, 'blue');
UPDATE item SET name = 'green' WHERE id = 1;
INSERT INTO neighbour VALUES (1);
-- step: run
-- expect: merging item
-- expect: merging neighbour
-- expect: current item (id, size, length(body), name)
--   1 | ∅ | 3000 | green
--   2 | 2 | 3000 | red
--   3 | 3 | 3000 | red
--   4 | 4 | 3000 | red
--   5 | 5 | 3000 | red
--   6 | ∅ | ∅    | blue
UPDATE item SET name = 'old shape' WHERE id = 2;
UPDATE item SET id = 30 WHERE id = 3;
ALTER TABLE item DROP COLUMN body;
UPDATE item SET name = 'new shape' WHERE id = 4;
UPDATE item SET name = 'both' WHERE id = 30;
INSERT INTO item VALUES (7, 'new');
-- step: run
-- expect: merging item
-- expect: current item (id, size, length(body), name)
--   1  | ∅ | 3000 | green
--   2  | ∅ | 3000 | old shape
--   30 | ∅ | ∅    | both
--   4  | ∅ | ∅    | new shape
--   5  | 5 | 3000 | red
--   6  | ∅ | ∅    | blue
--   7  | ∅ | ∅    | new
DELETE FROM item WHERE id = 5;
TRUNCATE neighbour;
-- step: run
-- expect: columns item (id, size, body, name)
TRUNCATE item;
INSERT INTO item VALUES (8, 'after all');
-- step: run
-- expect: current item (id, size, body, name)
--   8 | ∅ | ∅ | after all
