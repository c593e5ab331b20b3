-- Under REPLICA IDENTITY FULL a table with a primary key is keyed by it; every update carries the whole old row.

CREATE TABLE person (id int PRIMARY KEY, name text, age int);
ALTER TABLE person REPLICA IDENTITY FULL;
-- step: run
INSERT INTO person VALUES (1, 'Ada', 36), (2, NULL, NULL), (3, 'Cy', 1);
-- step: run
UPDATE person SET age = 37 WHERE id = 1;
UPDATE person SET id = 20 WHERE id = 2;
DELETE FROM person WHERE id = 3;
UPDATE person SET name = name WHERE id = 1;
-- step: run
-- expect: history person (_op, id, name, age)
--   insert | 1  | Ada | 36
--   insert | 2  | ∅   | ∅
--   insert | 3  | Cy  | 1
--   update | 1  | Ada | 37
--   delete | 2  | *   | *
--   insert | 20 | ∅   | ∅
--   delete | 3  | *   | *
--   update | 1  | Ada | 37
