-- An integer is widened twice, and the key with it.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, size smallint);
-- part: rows
INSERT INTO item SELECT n, n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET size = 9 WHERE id = 2;
-- part: alteration
ALTER TABLE item ALTER COLUMN size TYPE int;
UPDATE item SET size = 90000 WHERE id = 4;
ALTER TABLE item ALTER COLUMN size TYPE bigint, ALTER COLUMN id TYPE bigint;
-- part: after
UPDATE item SET size = 9000000000 WHERE id = 3;
INSERT INTO item VALUES (9000000000, 1);
-- outcome: needs backfill item (rewritten)
