-- Changes are ordered by commit, not by when they were made: the transaction that began first commits last and wins.

CREATE TABLE item (id int PRIMARY KEY, name text);
-- step: run
INSERT INTO item VALUES (1, 'one'), (2, 'two');
-- step: run
-- session: a
BEGIN;
UPDATE item SET name = 'a' WHERE id = 1;
INSERT INTO item VALUES (10, 'a first');
-- session: b
BEGIN;
UPDATE item SET name = 'b' WHERE id = 2;
INSERT INTO item VALUES (11, 'b first');
COMMIT;
-- session: a
UPDATE item SET name = 'a again' WHERE id = 2;
-- step: run
-- expect: current item (id, name)
--   1  | one
--   2  | b
--   11 | b first
-- session: a
DELETE FROM item WHERE id = 11;
COMMIT;
-- step: run
-- expect: history item (_op, id, name)
--   insert | 1  | one
--   insert | 2  | two
--   update | 2  | b
--   insert | 11 | b first
--   update | 1  | a
--   insert | 10 | a first
--   update | 2  | a again
--   delete | 11 | *
