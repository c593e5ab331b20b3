-- A virtual generated column is added, which PostgreSQL never publishes.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, size int);
-- part: rows
INSERT INTO item SELECT n, n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET size = 9 WHERE id = 2;
-- part: alteration
ALTER TABLE item ADD COLUMN twice int GENERATED ALWAYS AS (2 * size) VIRTUAL;
-- part: after
UPDATE item SET size = 7 WHERE id = 3;
ALTER TABLE item ADD COLUMN name text;
INSERT INTO item (id, size, name) VALUES (5, 5, 'new');
-- outcome: merging item
-- outcome: columns item (id, size, name)
