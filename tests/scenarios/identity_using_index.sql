-- Under REPLICA IDENTITY USING INDEX the key is that index's columns. A change of the primary key alone sends no old key
-- and is an update of the row that the identity names.

CREATE TABLE person (id int PRIMARY KEY, email text NOT NULL, name text, body text STORAGE EXTERNAL);
CREATE UNIQUE INDEX person_email ON person (email);
ALTER TABLE person REPLICA IDENTITY USING INDEX person_email;
-- step: run
INSERT INTO person VALUES (1, 'a@x', 'Ada', repeat('a', 4000)), (2, 'b@x', 'Ben', repeat('b', 4000)), (3, 'c@x', 'Cy', NULL);
-- step: run
UPDATE person SET id = 100 WHERE id = 1;
UPDATE person SET email = 'ben@x' WHERE id = 2;
DELETE FROM person WHERE id = 3;
-- step: run
-- expect: current person (email, id, name, left(body, 1))
--   a@x   | 100 | Ada | a
--   ben@x | 2   | Ben | b
-- expect: history person (_op, email)
--   insert | a@x
--   insert | b@x
--   insert | c@x
--   update | a@x
--   delete | b@x
--   insert | ben@x
--   delete | c@x
