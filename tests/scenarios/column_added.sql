-- A nullable column without a default that is added at the source is followed, also in the middle of a batch.

CREATE TABLE item (id int PRIMARY KEY, name text);
-- step: run
INSERT INTO item VALUES (1, 'before');
-- step: run
INSERT INTO item VALUES (2, 'old shape');
ALTER TABLE item ADD COLUMN colour text, ADD COLUMN weight numeric(6,1);
INSERT INTO item VALUES (3, 'new shape', 'red', 1.5);
UPDATE item SET colour = 'blue' WHERE id = 1;
-- step: run
-- expect: current item (id, name, colour, weight)
--   1 | before    | blue | ∅
--   2 | old shape | ∅    | ∅
--   3 | new shape | red  | 1.5
DELETE FROM item WHERE id = 1;
ALTER TABLE item ADD COLUMN later bigint[];
INSERT INTO item (id, later) VALUES (4, '{1,NULL}');
-- step: run
-- expect: merging item
