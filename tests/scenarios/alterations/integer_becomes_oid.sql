-- An integer becomes an oid, for which no row is written anew: a negative one reads as a large number.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, number int);
-- part: rows
INSERT INTO item SELECT n, -n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET number = -9 WHERE id = 2;
-- part: alteration
ALTER TABLE item ALTER COLUMN number TYPE oid;
-- part: after
UPDATE item SET number = 4000000000 WHERE id = 3;
-- outcome: needs backfill item (older rows read as something else)
