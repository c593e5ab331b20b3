-- An array that is declared with more than one dimension is captured as PostgreSQL's text, so no value of it is lost.

CREATE TABLE grid (id int PRIMARY KEY, cells int[][], plain int[]);
-- step: run
INSERT INTO grid VALUES (1, '{{1,2},{3,4}}', '{1}'), (2, '{5}', '{2,3}');
-- step: run
-- expect: current grid (id, cells, plain)
--   1 | {{1,2},{3,4}} | 1
--   2 | {5} | 2 3
ALTER TABLE grid ADD COLUMN more text[][];
INSERT INTO grid VALUES (3, NULL, NULL, '{{a},{b}}');
-- step: run
ALTER TABLE grid RENAME COLUMN cells TO squares;
UPDATE grid SET squares = '{{7}}' WHERE id = 2;
-- step: run
ALTER TABLE grid ALTER COLUMN plain TYPE int[][];
UPDATE grid SET plain = '{8,9}' WHERE id = 1;
-- step: run
-- expect: current grid (id, squares, plain, more)
--   1 | {{1,2},{3,4}} | 8 9 | ∅
--   2 | {{7}} | 2 3 | ∅
--   3 | ∅ | ∅ | {{a},{b}}
