-- A stored generated column becomes an ordinary one, and keeps its values.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, size int, twice int GENERATED ALWAYS AS (2 * size) STORED);
-- part: rows
INSERT INTO item SELECT n, n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET size = 9 WHERE id = 2;
-- part: alteration
ALTER TABLE item ALTER COLUMN twice DROP EXPRESSION;
-- part: after
UPDATE item SET twice = 7 WHERE id = 3;
INSERT INTO item VALUES (5, 5, NULL);
-- outcome: merging item
