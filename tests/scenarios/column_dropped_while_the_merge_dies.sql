-- The merge that follows a dropped column is killed between its commits, and a second column is dropped before the next
-- one: what was committed stands, and what comes of it is the same.

CREATE TABLE item (id int PRIMARY KEY, size int, colour text, name text);
-- step: run
INSERT INTO item SELECT n, n, 'red', 'one' FROM generate_series(1, 4) n;
-- step: run
UPDATE item SET name = 'two' WHERE id = 1;
ALTER TABLE item DROP COLUMN size;
UPDATE item SET name = 'three' WHERE id = 2;
-- step: drain
-- step: crash at merge.before_history
ALTER TABLE item DROP COLUMN colour;
UPDATE item SET name = 'four' WHERE id = 3;
-- step: drain
-- step: crash at merge.after_history
INSERT INTO item VALUES (5, 'five');
-- step: run
-- expect: merging item
-- expect: current item (id, size, colour, name)
--   1 | 1 | red | two
--   2 | ∅ | red | three
--   3 | ∅ | ∅   | four
--   4 | 4 | red | one
--   5 | ∅ | ∅   | five
