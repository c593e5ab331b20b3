-- Several batches are merged in one plan; the large value is in the target or in the first one, its updates in later ones.

CREATE TABLE note (id int PRIMARY KEY, title text, body text STORAGE EXTERNAL);
-- step: run

INSERT INTO note VALUES (1, 'target', repeat('a', 5000));
-- step: run
INSERT INTO note VALUES (2, 'first batch', repeat('b', 5000));
UPDATE note SET title = 'second' WHERE id = 1;
-- step: drain
UPDATE note SET title = 'third' WHERE id = 1;
UPDATE note SET id = 3 WHERE id = 2;
-- step: drain
UPDATE note SET title = 'fourth';
-- step: run
-- expect: current note (id, title, left(body, 1), length(body))
--   1 | fourth | a | 5000
--   3 | fourth | b | 5000
