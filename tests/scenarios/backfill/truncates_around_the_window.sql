-- A truncate at every moment around a chunk; what the chunk holds from before it is gone, what came after it stays.

CREATE TABLE merged_before (id int PRIMARY KEY, what text, body text STORAGE EXTERNAL);
INSERT INTO merged_before VALUES (1, 'old', repeat('o', 5000)), (2, 'old', 'o'), (3, 'old', 'o');
CREATE TABLE staged_before (LIKE merged_before INCLUDING ALL);
INSERT INTO staged_before SELECT * FROM merged_before;
CREATE TABLE behind_low (LIKE merged_before INCLUDING ALL);
INSERT INTO behind_low SELECT * FROM merged_before;
CREATE TABLE before_high (LIKE merged_before INCLUDING ALL);
INSERT INTO before_high SELECT * FROM merged_before;
CREATE TABLE alone (LIKE merged_before INCLUDING ALL);
INSERT INTO alone SELECT * FROM merged_before;
CREATE TABLE behind_high (LIKE merged_before INCLUDING ALL);
INSERT INTO behind_high SELECT * FROM merged_before;
CREATE TABLE bag (what text);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag VALUES ('old'), ('old'), ('older');
CREATE TABLE late_bag (LIKE bag);
ALTER TABLE late_bag REPLICA IDENTITY FULL;
INSERT INTO late_bag SELECT * FROM bag;
-- step: run
TRUNCATE merged_before;
INSERT INTO merged_before VALUES (1, 'refilled', repeat('r', 5000)), (4, 'refilled', 'r');
-- step: run
UPDATE staged_before SET what = 'lost' WHERE id = 2;
TRUNCATE staged_before;
INSERT INTO staged_before VALUES (1, 'refilled', repeat('r', 5000)), (4, 'refilled', 'r');
-- step: drain
-- step: plan
UPDATE behind_low SET what = 'lost' WHERE id = 1;
-- at: low behind_low
TRUNCATE behind_low;
INSERT INTO behind_low VALUES (1, 'refilled', repeat('r', 5000)), (4, 'refilled', 'r');
-- at: high before_high
INSERT INTO before_high VALUES (5, 'lost', 'l');
TRUNCATE before_high;
INSERT INTO before_high VALUES (1, 'refilled', repeat('r', 5000)), (4, 'refilled', 'r');
UPDATE before_high SET what = 'and changed' WHERE id = 1;
-- at: high alone
TRUNCATE alone;
-- at: high bag
INSERT INTO bag VALUES ('lost');
TRUNCATE bag;
INSERT INTO bag VALUES ('new'), ('old');
-- step: read
UPDATE merged_before SET what = 'kept' WHERE id = 1;
UPDATE staged_before SET what = 'kept' WHERE id = 1;
UPDATE behind_low SET what = 'kept' WHERE id = 1;
TRUNCATE behind_high;
INSERT INTO behind_high VALUES (1, 'refilled', repeat('r', 5000)), (4, 'refilled', 'r');
UPDATE behind_high SET what = 'and changed' WHERE id = 1;
DELETE FROM late_bag WHERE what = 'older';
TRUNCATE late_bag;
INSERT INTO late_bag VALUES ('new'), ('old');
-- step: end backfill
-- step: run
-- step: backfill again
-- step: verify
