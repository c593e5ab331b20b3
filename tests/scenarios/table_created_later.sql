-- A pattern takes up a table created later: seen empty when it joins, it is in sync; with rows it needs a backfill.

CREATE TABLE first (id int PRIMARY KEY);
-- step: run
CREATE TABLE empty_when_joined (id int PRIMARY KEY, name text);
CREATE TABLE full_when_joined (id int PRIMARY KEY, name text);
INSERT INTO full_when_joined VALUES (1, 'not in the stream');
-- step: run
-- expect: marked full_when_joined ()
INSERT INTO empty_when_joined VALUES (1, 'a');
INSERT INTO full_when_joined VALUES (2, 'in the stream');
-- step: run
-- expect: merging empty_when_joined
-- expect: marked full_when_joined ()
