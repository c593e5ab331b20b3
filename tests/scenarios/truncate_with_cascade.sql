-- TRUNCATE of two tables, and with CASCADE, is one message for several tables, each of which gets its row.

CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent);
CREATE TABLE alone (id int PRIMARY KEY);
CREATE TABLE other (id int PRIMARY KEY);
-- step: run
INSERT INTO parent VALUES (1), (2);
INSERT INTO child VALUES (10, 1);
INSERT INTO alone VALUES (1);
INSERT INTO other VALUES (1);
-- step: run
TRUNCATE parent CASCADE;
TRUNCATE alone, other RESTART IDENTITY;
INSERT INTO parent VALUES (3);
-- step: run
-- expect: current parent (id)
--   3
-- expect: current child (id)
-- expect: history child (_op, id, parent)
--   insert   | 10 | 1
--   truncate | ∅  | ∅
-- expect: history other (_op, id)
--   insert   | 1
--   truncate | ∅
