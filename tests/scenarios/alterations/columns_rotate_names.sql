-- Three columns of one type take each other's names in a circle, and one of them is dropped behind that.
-- read again: renamed
-- part: table
CREATE TABLE item (id int PRIMARY KEY, a text, b text, c text);
-- part: rows
INSERT INTO item SELECT n, 'a' || n, 'b' || n, 'c' || n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET b = 'before' WHERE id = 2;
-- part: alteration
BEGIN;
ALTER TABLE item RENAME COLUMN a TO x;
ALTER TABLE item RENAME COLUMN b TO a;
ALTER TABLE item RENAME COLUMN c TO b;
ALTER TABLE item RENAME COLUMN x TO c;
COMMIT;
UPDATE item SET a = 'was b' WHERE id = 3;
ALTER TABLE item DROP COLUMN c;
-- part: after
UPDATE item SET b = 'was c' WHERE id = 4;
-- outcome: merging item
