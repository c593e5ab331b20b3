-- The row that holds the large value and the update that leaves it out fall into one batch: the fold keeps the value.

CREATE TABLE note (id int PRIMARY KEY, title text, body text STORAGE EXTERNAL);
-- step: run

BEGIN;
INSERT INTO note VALUES (1, 'one', repeat('a', 5000));
UPDATE note SET title = 'same transaction' WHERE id = 1;
COMMIT;
INSERT INTO note VALUES (2, 'two', repeat('b', 5000));
UPDATE note SET title = 'next transaction' WHERE id = 2;
UPDATE note SET body = repeat('c', 5000) WHERE id = 2;
UPDATE note SET title = 'last' WHERE id = 2;
INSERT INTO note VALUES (3, 'three', repeat('d', 5000));
UPDATE note SET title = 'gone' WHERE id = 3;
DELETE FROM note WHERE id = 3;
INSERT INTO note VALUES (3, 'three', NULL);
UPDATE note SET title = 'back' WHERE id = 3;
-- step: run
-- expect: current note (id, title, left(body, 1), length(body))
--   1 | same transaction | a | 5000
--   2 | last             | c | 5000
--   3 | back             | ∅ | ∅
-- expect: history note (_op, id, title, left(body, 1), _unchanged)
--   insert | 1 | one              | a | ∅
--   update | 1 | same transaction | a | body
--   insert | 2 | two              | b | ∅
--   update | 2 | next transaction | b | body
--   update | 2 | next transaction | c | ∅
--   update | 2 | last             | c | body
--   insert | 3 | three            | d | ∅
--   update | 3 | gone             | d | body
--   delete | 3 | *                | * | *
--   insert | 3 | three            | ∅ | ∅
--   update | 3 | back             | ∅ | ∅
