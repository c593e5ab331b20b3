-- VACUUM FULL, CLUSTER and a truncate give a table new files and change no row: nothing is marked.

CREATE TABLE item (id int PRIMARY KEY, name text);
-- step: run
INSERT INTO item VALUES (2, 'b'), (1, 'a');
-- step: run
VACUUM FULL item;
CLUSTER item USING item_pkey;
UPDATE item SET name = 'c' WHERE id = 1;
-- step: run
-- expect: merging item
TRUNCATE item;
INSERT INTO item VALUES (7, 'x');
-- step: run
-- expect: merging item
