-- The same for tables whose rows cannot be told apart, and for one that is history only.
-- capture: *, log

CREATE TABLE bag (what text);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag VALUES ('x'), ('x'), ('y'), ('z'), ('z');
CREATE TABLE late_bag (LIKE bag);
ALTER TABLE late_bag REPLICA IDENTITY FULL;
INSERT INTO late_bag SELECT * FROM bag;
CREATE TABLE log (what text);
INSERT INTO log VALUES ('old'), ('old');
-- step: run
INSERT INTO log VALUES ('streamed');
INSERT INTO bag VALUES ('streamed');
-- step: run
-- step: plan

-- session: a
BEGIN;
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE what = 'x');
UPDATE bag SET what = 'a' WHERE what = 'y';
INSERT INTO bag VALUES ('x'), ('a');
INSERT INTO log VALUES ('a');
-- hang: a
-- session: b
BEGIN;
DELETE FROM bag WHERE what = 'z';
INSERT INTO bag VALUES ('b');
INSERT INTO log VALUES ('b');
-- hang: b
-- session: c
BEGIN;
DELETE FROM late_bag WHERE ctid = (SELECT min(ctid) FROM late_bag WHERE what = 'x');
INSERT INTO late_bag VALUES ('c');
-- at: high late_bag
-- hang: c
-- at: low late_bag
-- session: d
BEGIN;
UPDATE late_bag SET what = 'd' WHERE what = 'z';
-- hang: d
-- at: low log
-- session: e
BEGIN;
INSERT INTO log VALUES ('e');
-- hang: e
-- at: high log
-- session: main
INSERT INTO log VALUES ('below W');
-- step: read

-- release: a
-- release: d
-- session: main
INSERT INTO log VALUES ('above W');
-- step: end backfill
-- release: b
-- release: c
-- release: e
-- step: run
-- expect: current bag (what)
--   a
--   a
--   b
--   streamed
--   x
--   x
-- expect: history log (_op, what)
--   insert | streamed
--   insert | a
--   insert | b
--   insert | e
--   insert | below W
--   read   | old
--   read   | old
--   insert | above W
-- step: backfill again
-- step: verify
