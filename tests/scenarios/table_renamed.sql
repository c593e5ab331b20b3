-- A table keeps its Delta tables whatever it is called, and a new one of its old name gets others.
-- alone

CREATE TABLE item (id int PRIMARY KEY, name text);
-- step: run
INSERT INTO item VALUES (1, 'a');
-- step: run
INSERT INTO item VALUES (2, 'b');
ALTER TABLE item RENAME TO thing;
INSERT INTO thing VALUES (3, 'c');
CREATE TABLE item (id int PRIMARY KEY, size int);
-- step: run
-- expect: tables item, item~2
-- expect: merging item
INSERT INTO item VALUES (9, 9);
DELETE FROM thing WHERE id = 1;
-- step: run
-- expect: current item (id, name)
--   2 | b
--   3 | c
-- expect: current item~2 (id, size)
--   9 | 9
