-- A key that is deleted and inserted again is a new row: nothing of the old one shines through.

CREATE TABLE item (id int PRIMARY KEY, name text, body text STORAGE EXTERNAL);
-- step: run

INSERT INTO item VALUES (1, 'old', repeat('a', 5000)), (2, 'old', 'x');
-- step: run
BEGIN;
DELETE FROM item WHERE id = 1;
INSERT INTO item (id, name) VALUES (1, 'new');
COMMIT;
DELETE FROM item WHERE id = 2;
INSERT INTO item VALUES (2, NULL, NULL);
DELETE FROM item WHERE id = 2;
INSERT INTO item VALUES (3, 'came', 'and');
DELETE FROM item WHERE id = 3;
-- step: run
-- expect: current item (id, name, body)
--   1 | new | ∅
