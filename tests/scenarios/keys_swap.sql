-- Two rows swap their keys by way of a third value, in one transaction and in three.

CREATE TABLE seat (id int PRIMARY KEY, guest text, body text STORAGE EXTERNAL);
-- step: run

INSERT INTO seat VALUES (1, 'Ada', repeat('a', 4000)), (2, 'Ben', repeat('b', 4000));
-- step: run
BEGIN;
UPDATE seat SET id = -1 WHERE id = 1;
UPDATE seat SET id = 1 WHERE id = 2;
UPDATE seat SET id = 2 WHERE id = -1;
COMMIT;
-- step: run
-- expect: current seat (id, guest, left(body, 1))
--   1 | Ben | b
--   2 | Ada | a
UPDATE seat SET id = -1 WHERE id = 1;
UPDATE seat SET id = 1 WHERE id = 2;
UPDATE seat SET id = 2 WHERE id = -1;
-- step: run
-- expect: current seat (id, guest, left(body, 1))
--   1 | Ada | a
--   2 | Ben | b
