-- Rows that existed before capture began are in no change: their table is marked, an empty one is not.

CREATE TABLE empty (id int PRIMARY KEY);
CREATE TABLE filled (id int PRIMARY KEY);
INSERT INTO filled VALUES (1);
-- step: run
-- expect: marked filled ()
INSERT INTO empty VALUES (1);
INSERT INTO filled VALUES (2);
-- step: run
-- expect: merging empty
-- expect: marked filled ()
