-- A key is never converted with loss: a value that its type cannot hold parks the table, and only this one.

CREATE TABLE item (at timestamptz PRIMARY KEY, name text);
CREATE TABLE neighbour (id int PRIMARY KEY);
-- step: run
INSERT INTO item VALUES ('2024-01-01 00:00:00+00', 'fits');
-- step: run
INSERT INTO item VALUES ('infinity', 'does not'), ('-infinity', 'neither');
INSERT INTO neighbour VALUES (1);
-- step: run
-- expect: parked item ()
-- expect: merging neighbour
-- expect: confirmed everything
