-- A nullable column that is added between chunk and merge: the chunk's rows lack it, which is what they have.

CREATE TABLE grows (id int PRIMARY KEY, what text, body text STORAGE EXTERNAL);
INSERT INTO grows VALUES (1, 'old', repeat('o', 5000)), (2, 'old', 'o'), (3, 'old', 'o');
CREATE TABLE bag (what text);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag VALUES ('x'), ('x');
-- step: run
-- step: run
-- step: plan
-- at: high grows
ALTER TABLE grows ADD COLUMN added text;
UPDATE grows SET added = 'unseen' WHERE id = 1;
-- step: read
INSERT INTO grows VALUES (4, 'new', 'n', 'new');
ALTER TABLE bag ADD COLUMN added text;
UPDATE bag SET added = 'one of them' WHERE ctid = (SELECT min(ctid) FROM bag);
-- step: end backfill
-- expect: current grows (id, what, left(body, 1), added)
--   1 | old | o | unseen
--   2 | old | o | ∅
--   3 | old | o | ∅
--   4 | new | n | new
-- step: run
-- step: backfill again
-- step: verify
