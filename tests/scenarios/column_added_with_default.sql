-- ADD COLUMN … DEFAULT fills every older row without one change in the stream: the table is marked as needing a backfill.

CREATE TABLE item (id int PRIMARY KEY, name text);
CREATE TABLE neighbour (id int PRIMARY KEY);
-- step: run
INSERT INTO item VALUES (1, 'before');
-- step: run
ALTER TABLE item ADD COLUMN state text DEFAULT 'open';
INSERT INTO item VALUES (2, 'after');
INSERT INTO neighbour VALUES (1);
-- step: run
-- expect: marked item (state)
-- expect: merging neighbour
