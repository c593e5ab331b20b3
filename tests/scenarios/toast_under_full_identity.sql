-- Under REPLICA IDENTITY FULL the old row carries the large value: it is filled from there, and a moved key keeps it.

CREATE TABLE note (id int PRIMARY KEY, title text, body text STORAGE EXTERNAL);
ALTER TABLE note REPLICA IDENTITY FULL;
-- step: run

INSERT INTO note VALUES (1, 'one', repeat('a', 5000)), (2, 'two', repeat('b', 5000));
-- step: run
UPDATE note SET title = 'changed' WHERE id = 1;
UPDATE note SET id = 12 WHERE id = 2;
UPDATE note SET title = 'moved' WHERE id = 12;
-- step: run
-- expect: current note (id, title, left(body, 1), length(body))
--   1  | changed | a | 5000
--   12 | moved   | b | 5000
