-- A column's type changes: the table is parked with the reason, its neighbours and the slot go on.

CREATE TABLE item (id int PRIMARY KEY, size int);
CREATE TABLE neighbour (id int PRIMARY KEY);
-- step: run
INSERT INTO item VALUES (1, 1);
-- step: run
ALTER TABLE item ALTER COLUMN size TYPE text USING 'size ' || size;
INSERT INTO item VALUES (2, 'two');
INSERT INTO neighbour VALUES (1);
-- step: run
-- expect: parked item (SchemaNotFollowed)
-- expect: merging neighbour
-- expect: confirmed everything
INSERT INTO item VALUES (3, 'three');
INSERT INTO neighbour VALUES (2);
-- step: run
-- expect: parked item (SchemaNotFollowed)
-- expect: confirmed everything
