-- A dropped column is a difference that is not followed yet: the table says so, its neighbours go on.

CREATE TABLE item (id int PRIMARY KEY, size int, colour text);
CREATE TABLE neighbour (id int PRIMARY KEY);
-- step: run
INSERT INTO item VALUES (1, 1, 'red');
-- step: run
ALTER TABLE item DROP COLUMN size;
INSERT INTO item VALUES (2, 'blue');
INSERT INTO neighbour VALUES (1);
-- step: run
-- expect: marked item (size)
-- expect: merging neighbour
