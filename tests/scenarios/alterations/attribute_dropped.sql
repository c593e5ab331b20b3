-- A composite type loses an attribute: older values read as shorter ones, of which the stream says nothing.
-- part: table
CREATE TYPE place AS (street text, number int);
CREATE TABLE item (id int PRIMARY KEY, place place);
-- part: rows
INSERT INTO item SELECT n, ROW('street'::text, n)::place FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET place = ROW('before'::text, 2)::place WHERE id = 2;
-- part: alteration
ALTER TYPE place DROP ATTRIBUTE number;
-- part: after
UPDATE item SET place = ROW('after'::text)::place WHERE id = 3;
-- outcome: needs backfill item (older rows read as something else)
