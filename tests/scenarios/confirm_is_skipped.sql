-- The run ends after the merge and before the confirmation: the source sends again, nothing changes twice.

CREATE TABLE item (id int PRIMARY KEY, name text);
CREATE TABLE bag (name text);
ALTER TABLE bag REPLICA IDENTITY FULL;
-- step: run
INSERT INTO item VALUES (1, 'a'), (2, 'b');
INSERT INTO bag VALUES ('x'), ('x');
-- step: drain
-- step: merge
-- expect: confirmed less than staged
DELETE FROM item WHERE id = 1;
INSERT INTO bag VALUES ('x');
-- step: run
-- expect: history bag (_op, name)
--   insert | x
--   insert | x
--   insert | x
