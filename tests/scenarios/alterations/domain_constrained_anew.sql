-- The domain of an array's elements and of a column gets a constraint that is valid for new values alone.
-- part: table
CREATE DOMAIN amount AS int;
CREATE TABLE item (id int PRIMARY KEY, size amount, sizes amount[]);
-- part: rows
INSERT INTO item SELECT n, -n, ARRAY[n, -n]::amount[] FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET size = 9 WHERE id = 2;
-- part: alteration
ALTER DOMAIN amount ADD CONSTRAINT positive CHECK (VALUE > 0) NOT VALID;
-- part: after
UPDATE item SET size = 7, sizes = '{1,2}' WHERE id = 3;
-- outcome: merging item
