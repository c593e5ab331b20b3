-- A table whose first change is a truncate; a refill in the same batch, and in a later one.

CREATE TABLE a (id int PRIMARY KEY);
CREATE TABLE b (id int PRIMARY KEY);
-- step: run
TRUNCATE a;
TRUNCATE b;
INSERT INTO b VALUES (1);
-- step: run
-- expect: history a (_op, id)
--   truncate | ∅
-- expect: current b (id)
--   1
INSERT INTO a VALUES (2);
TRUNCATE b;
-- step: run
-- expect: current a (id)
--   2
-- expect: current b (id)
