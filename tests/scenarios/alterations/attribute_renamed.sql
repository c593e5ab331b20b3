-- An attribute of a composite type is renamed: the text of a value does not name it.
-- part: table
CREATE TYPE place AS (street text, number int);
CREATE TABLE item (id int PRIMARY KEY, place place);
-- part: rows
INSERT INTO item SELECT n, ROW('street'::text, n)::place FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET place = ROW('before'::text, 2)::place WHERE id = 2;
-- part: alteration
ALTER TYPE place RENAME ATTRIBUTE number TO house;
-- part: after
UPDATE item SET place = ROW('after'::text, 3)::place WHERE id = 3;
-- outcome: merging item
