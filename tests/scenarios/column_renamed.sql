-- A renamed column keeps its place in the catalogue; it is not followed yet: the table says so.

CREATE TABLE item (id int PRIMARY KEY, colour text);
-- step: run
INSERT INTO item VALUES (1, 'red');
-- step: run
ALTER TABLE item RENAME COLUMN colour TO paint;
INSERT INTO item VALUES (2, 'blue');
-- step: run
-- expect: parked item (SchemaNotFollowed.*colour)
