-- A column dropped from a table without a key is followed: a row is found by what it has still. Between two runs, in the
-- middle of a batch, and of a table that can only be inserted into.
-- capture: bag, log

CREATE TABLE bag (name text, size int, body text);
ALTER TABLE bag REPLICA IDENTITY FULL;
ALTER TABLE bag ALTER body SET STORAGE EXTERNAL;
CREATE TABLE log (name text, size int);
ALTER TABLE log REPLICA IDENTITY NOTHING;
-- step: run
INSERT INTO bag VALUES ('a', 1, 'x'), ('a', 2, 'x'), ('a', 2, 'x'), ('b', 3, repeat('b', 3000)), ('c', 4, 'y');
INSERT INTO log VALUES ('a', 1);
-- step: run
ALTER TABLE bag DROP COLUMN size;
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE name = 'a');
UPDATE bag SET name = 'bb' WHERE name = 'b';
INSERT INTO bag VALUES ('a', 'x'), ('d', 'z');
ALTER TABLE log DROP COLUMN size;
INSERT INTO log VALUES ('b');
-- step: run
-- expect: merging bag
-- expect: merging log
-- expect: current bag (name, size, length(body))
--   a  | ∅ | 1
--   a  | ∅ | 1
--   a  | ∅ | 1
--   bb | ∅ | 3000
--   c  | 4 | 1
--   d  | ∅ | 1
-- expect: history log (_op, name, size)
--   insert | a | 1
--   insert | b | ∅
UPDATE bag SET body = 'old shape' WHERE name = 'c';
INSERT INTO bag VALUES ('c', 'more');
ALTER TABLE bag DROP COLUMN body;
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE name = 'c');
INSERT INTO bag VALUES ('d');
-- step: run
-- expect: merging bag
-- expect: current bag (name, body)
--   a  | x
--   a  | x
--   a  | x
--   bb | *
--   c  | ∅
--   d  | ∅
--   d  | ∅
