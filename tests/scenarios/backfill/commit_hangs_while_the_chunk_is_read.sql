-- A commit that is in the WAL and not visible: the chunk misses it, whatever the watermarks say.

CREATE TABLE early (id int PRIMARY KEY, what text, body text STORAGE EXTERNAL);
INSERT INTO early SELECT i, 'old', repeat('o', 5000) FROM generate_series(1, 12) AS i;
CREATE TABLE late (LIKE early INCLUDING ALL);
INSERT INTO late SELECT * FROM early;
-- step: run
-- step: run
-- step: plan

-- Both are below the low watermark and in the snapshot's list of what is in progress.
-- session: a
BEGIN;
UPDATE early SET what = 'a' WHERE id = 1;
DELETE FROM early WHERE id = 2;
INSERT INTO early VALUES (20, 'a', 'a');
UPDATE early SET id = 21, what = 'a' WHERE id = 3;
-- hang: a
-- session: b
BEGIN;
UPDATE early SET what = 'b' WHERE id = 4;
DELETE FROM early WHERE id = 5;
INSERT INTO early VALUES (22, 'b', 'b');
UPDATE early SET id = 23, what = 'b' WHERE id = 6;
-- hang: b

-- One begins before the low watermark and hangs behind the chunk, another begins between low watermark and snapshot: its
-- number is at or above the snapshot's xmax.
-- session: c
BEGIN;
UPDATE late SET what = 'c' WHERE id = 1;
DELETE FROM late WHERE id = 2;
INSERT INTO late VALUES (20, 'c', 'c');
UPDATE late SET id = 21, what = 'c' WHERE id = 3;
-- at: high late
-- hang: c
-- at: low late
-- session: d
BEGIN;
UPDATE late SET what = 'd' WHERE id = 4;
DELETE FROM late WHERE id = 5;
INSERT INTO late VALUES (22, 'd', 'd');
UPDATE late SET id = 23, what = 'd' WHERE id = 6;
-- hang: d
-- step: read

-- release: a
-- release: d
-- step: end backfill
-- expect: report early (read=12, inserted=6, overtaken=6, lost_by_window=6, swept=0)
-- expect: report late (read=12, inserted=6, overtaken=6, lost_by_window=0, swept=0)

-- release: b
-- release: c
-- step: run
-- expect: current early (id, what, left(body, 1))
--   1  | a   | o
--   4  | b   | o
--   7  | old | o
--   8  | old | o
--   9  | old | o
--   10 | old | o
--   11 | old | o
--   12 | old | o
--   20 | a   | a
--   21 | a   | o
--   22 | b   | b
--   23 | b   | o
-- step: backfill again
-- step: verify
