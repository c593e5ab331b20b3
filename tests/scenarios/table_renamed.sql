-- A rename looks like a continuation in the stream and is another table for the pipeline: both names say what they need.

CREATE TABLE item (id int PRIMARY KEY, name text);
-- step: run
INSERT INTO item VALUES (1, 'a');
-- step: run
ALTER TABLE item RENAME TO thing;
INSERT INTO thing VALUES (2, 'b');
-- step: run
-- expect: marked thing ()
-- expect: marked item ()
