-- The index of a table's replica identity is dropped: PostgreSQL refuses UPDATE and DELETE until there is another one.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, number int NOT NULL);
CREATE UNIQUE INDEX item_number ON item (number);
ALTER TABLE item REPLICA IDENTITY USING INDEX item_number;
-- part: rows
INSERT INTO item SELECT n, 10 * n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET number = 21 WHERE id = 2;
-- part: alteration
DROP INDEX item_number;
INSERT INTO item VALUES (5, 50);
CREATE UNIQUE INDEX item_number ON item (number);
ALTER TABLE item REPLICA IDENTITY USING INDEX item_number;
-- part: after
UPDATE item SET number = 31 WHERE id = 3;
DELETE FROM item WHERE id = 1;
-- outcome: marked item~3 (built anew)
-- outcome: tables item~3
