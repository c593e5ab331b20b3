-- A column that is added between chunk and merge: the chunk's rows lack it, which is what they have, or they have its
-- default. One that is widened there: they are read as they are. One that is added before the chunk is read, while the stream is behind: what no chunk has gets the default.

CREATE TABLE grows (id int PRIMARY KEY, what text, body text STORAGE EXTERNAL);
INSERT INTO grows VALUES (1, 'old', repeat('o', 5000)), (2, 'old', 'o'), (3, 'old', 'o');
CREATE TABLE bag (what text);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag VALUES ('x'), ('x');
CREATE TABLE filled (id int PRIMARY KEY, what text);
INSERT INTO filled VALUES (1, 'old'), (2, 'old'), (3, 'old');
CREATE TABLE ahead (id int PRIMARY KEY, what text);
INSERT INTO ahead VALUES (1, 'old');
CREATE TABLE wider (id int PRIMARY KEY, n numeric(4,1));
INSERT INTO wider VALUES (1, 1.5), (2, 2.5);
-- step: run
-- step: run
UPDATE ahead SET what = 'not merged yet';
-- step: plan
-- at: high filled
ALTER TABLE filled ADD COLUMN state text DEFAULT 'open', ADD COLUMN n int DEFAULT 5;
UPDATE filled SET n = NULL WHERE id = 1;
-- at: high wider
ALTER TABLE wider ALTER n TYPE numeric(9,1);
UPDATE wider SET n = 12345678.5 WHERE id = 2;
-- at: low ahead
ALTER TABLE ahead ADD COLUMN state text DEFAULT 'open';
-- at: high grows
ALTER TABLE grows ADD COLUMN added text;
UPDATE grows SET added = 'unseen' WHERE id = 1;
-- step: read
INSERT INTO grows VALUES (4, 'new', 'n', 'new');
INSERT INTO ahead VALUES (2, 'new', 'shut');
ALTER TABLE bag ADD COLUMN added text;
UPDATE bag SET added = 'one of them' WHERE ctid = (SELECT min(ctid) FROM bag);
-- step: end backfill
-- expect: current grows (id, what, left(body, 1), added)
--   1 | old | o | unseen
--   2 | old | o | ∅
--   3 | old | o | ∅
--   4 | new | n | new
-- expect: current filled (id, what, state, n)
--   1 | old | open | ∅
--   2 | old | open | 5
--   3 | old | open | 5
-- expect: current wider (id, n)
--   1 | 1.5
--   2 | 12345678.5
-- expect: current ahead (id, what, state)
--   1 | not merged yet | open
--   2 | new            | shut
-- step: run
-- step: backfill again
-- step: verify
