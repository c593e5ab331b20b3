-- An update that changes nothing is a change all the same: history has it.

CREATE TABLE item (id int PRIMARY KEY, name text);
-- step: run
INSERT INTO item VALUES (1, 'a');
-- step: run
UPDATE item SET name = name;
UPDATE item SET id = id;
-- step: run
-- expect: history item (_op, id, name)
--   insert | 1 | a
--   update | 1 | a
--   update | 1 | a
