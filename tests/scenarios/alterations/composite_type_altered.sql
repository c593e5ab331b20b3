-- A composite type gets another attribute: older values read as longer ones.
-- part: table
CREATE TYPE place AS (street text, number int);
CREATE TABLE item (id int PRIMARY KEY, place place);
-- part: rows
INSERT INTO item SELECT n, ROW('street'::text, n)::place FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET place = ROW('before'::text, 2)::place WHERE id = 2;
-- part: alteration
ALTER TYPE place ADD ATTRIBUTE town text;
-- part: after
UPDATE item SET place = ROW('after'::text, 3, 'town'::text)::place WHERE id = 3;
-- outcome: needs backfill item (older rows read as something else)
