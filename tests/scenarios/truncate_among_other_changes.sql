-- A truncate is applied in its place: what lies before it is gone, what comes after it stays. Two truncates, too.

CREATE TABLE event (id int PRIMARY KEY, what text, body text STORAGE EXTERNAL);
CREATE TABLE once (id int PRIMARY KEY, what text);
-- step: run
INSERT INTO event VALUES (1, 'a', repeat('a', 5000)), (2, 'b', NULL);
INSERT INTO once VALUES (1, 'x');
-- step: run
INSERT INTO event VALUES (3, 'c');
UPDATE event SET what = 'lost' WHERE id = 1;
BEGIN;
TRUNCATE event;
INSERT INTO event VALUES (1, 'refilled', repeat('r', 5000));
COMMIT;
INSERT INTO event VALUES (4, 'lost', NULL);
TRUNCATE event;
INSERT INTO event VALUES (1, 'again', repeat('s', 5000)), (5, 'e', NULL);
UPDATE event SET what = 'kept' WHERE id = 1;
UPDATE event SET id = 6 WHERE id = 1;
BEGIN;
INSERT INTO once VALUES (2, 'y');
TRUNCATE once;
TRUNCATE once;
COMMIT;
-- step: run
-- expect: current event (id, what, left(body, 1))
--   5 | e    | ∅
--   6 | kept | s
-- expect: current once (id)

-- A truncate that was rolled back never happened.
BEGIN;
TRUNCATE event;
ROLLBACK;
-- step: run
