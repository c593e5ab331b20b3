-- An enum and a composite type are renamed, and get into another schema: their values read as before.
-- part: table
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TYPE place AS (street text, number int);
CREATE TABLE item (id int PRIMARY KEY, mood mood, place place);
-- part: rows
INSERT INTO item SELECT n, 'sad', ROW('street'::text, n)::place FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET mood = 'glad' WHERE id = 2;
-- part: alteration
ALTER TYPE mood RENAME TO feeling;
CREATE SCHEMA type_renamed_aside;
ALTER TYPE place SET SCHEMA type_renamed_aside;
-- part: after
UPDATE item SET mood = 'glad', place = ROW('after', 3) WHERE id = 3;
-- outcome: merging item
