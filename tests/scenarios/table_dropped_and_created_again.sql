-- DROP and CREATE of one name looks like a continuation in the stream; the rows of the old table are none of the new one.

CREATE TABLE item (id int PRIMARY KEY, name text);
-- step: run
INSERT INTO item VALUES (1, 'old');
-- step: run
DROP TABLE item;
CREATE TABLE item (id int PRIMARY KEY, name text);
INSERT INTO item VALUES (2, 'new');
-- step: run
-- expect: marked item ()
