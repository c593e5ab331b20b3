-- A domain gets a constraint, and loses it.
-- part: table
CREATE DOMAIN amount AS int CHECK (VALUE > 0);
CREATE TABLE item (id int PRIMARY KEY, size amount);
-- part: rows
INSERT INTO item SELECT n, n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET size = 9 WHERE id = 2;
-- part: alteration
ALTER DOMAIN amount ADD CONSTRAINT small CHECK (VALUE < 100);
ALTER DOMAIN amount DROP CONSTRAINT amount_check;
-- part: after
UPDATE item SET size = -7 WHERE id = 3;
-- outcome: merging item
