-- A type that Delta can widen is followed without a file written anew, in the middle of a batch, for a key too. Where
-- PostgreSQL rewrote the table for it, USING may have changed any value, which nothing shows: it is marked. A longer
-- varchar, or text instead, is no change of the target.

CREATE TABLE price (id int PRIMARY KEY, amount numeric(6,2), name varchar(5), body text STORAGE EXTERNAL);
CREATE TABLE wide (id int PRIMARY KEY, n smallint, r real, day date);
CREATE TABLE narrow (id bigint PRIMARY KEY, n bigint);
-- step: run
INSERT INTO price SELECT n, 1.25, 'old', repeat('b', 3000) FROM generate_series(1, 4) n;
INSERT INTO wide SELECT n, n, 0.1, '2026-01-01' FROM generate_series(1, 4) n;
INSERT INTO narrow VALUES (1, 1);
-- step: run
UPDATE price SET name = 'two' WHERE id = 2;
ALTER TABLE price ALTER amount TYPE numeric(12,2), ALTER name TYPE varchar(20);
UPDATE price SET amount = 1234567890.5, name = 'a longer name' WHERE id = 1;
ALTER TABLE price ALTER name TYPE text;
UPDATE wide SET n = 7 WHERE id = 2;
ALTER TABLE wide ALTER id TYPE bigint, ALTER n TYPE int, ALTER r TYPE double precision, ALTER day TYPE timestamp;
INSERT INTO wide VALUES (3000000000, 100000, 0.1, '2026-01-01 12:30');
DELETE FROM wide WHERE id = 3;
UPDATE wide SET id = 5000000000 WHERE id = 4;
ALTER TABLE narrow ALTER n TYPE int;
INSERT INTO narrow VALUES (2, 2);
-- step: run
-- expect: merging price
-- expect: needs backfill wide (rewritten and)
-- expect: needs backfill narrow~2 ("n" changed from bigint)
-- expect: current wide (id, n)
--   1          | 1
--   2          | 7
--   3000000000 | 100000
--   5000000000 | 4
-- expect: current price (id, amount, name, length(body))
--   1 | 1234567890.50 | a longer name | 3000
--   2 | 1.25          | two           | 3000
--   3 | 1.25          | old           | 3000
--   4 | 1.25          | old           | 3000
ALTER TABLE price ALTER amount TYPE numeric(14,2);
-- step: run
UPDATE price SET name = 'three' WHERE id = 3;
DELETE FROM price WHERE id = 4;
-- step: run
-- expect: merging price
