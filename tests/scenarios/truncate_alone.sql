-- A truncate empties `current` and is one row of history.

CREATE TABLE event (id int PRIMARY KEY, what text);
-- step: run
INSERT INTO event VALUES (1, 'a'), (2, 'b');
-- step: run
TRUNCATE event;
-- step: run
-- expect: history event (_op, id)
--   insert   | 1
--   insert   | 2
--   truncate | ∅
-- expect: current event (id)

INSERT INTO event VALUES (1, 'after');
-- step: run
-- expect: current event (id, what)
--   1 | after
