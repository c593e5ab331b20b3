-- A column is taken out of the publication's list while changes come, and is back: what changed meanwhile lacks it.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, size int, name text);
-- part: rows
INSERT INTO item SELECT n, n, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
DO $$DECLARE publication name := (SELECT pubname FROM pg_publication); BEGIN EXECUTE format('ALTER PUBLICATION %I DROP TABLE item', publication); EXECUTE format('ALTER PUBLICATION %I ADD TABLE item (id, size)', publication); END$$;
UPDATE item SET size = 10, name = 'between' WHERE id = 1;
INSERT INTO item VALUES (5, 5, 'between');
DELETE FROM item WHERE id = 4;
DO $$DECLARE publication name := (SELECT pubname FROM pg_publication); BEGIN EXECUTE format('ALTER PUBLICATION %I DROP TABLE item', publication); EXECUTE format('ALTER PUBLICATION %I ADD TABLE item', publication); END$$;
-- part: after
UPDATE item SET size = 30 WHERE id = 3;
-- outcome: needs backfill item~last (columns were dropped beside others.*built anew)
