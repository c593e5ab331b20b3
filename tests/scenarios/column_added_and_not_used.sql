-- A column that was added and is in no change yet: `current` has it as soon as a change carries it.

CREATE TABLE item (id int PRIMARY KEY, name text);
-- step: run
INSERT INTO item VALUES (1, 'before');
-- step: run
ALTER TABLE item ADD COLUMN later int;
-- step: run
-- expect: not yet in current item (later)
UPDATE item SET name = 'after';
-- step: run
-- expect: merging item
-- expect: current item (id, name, later)
--   1 | after | ∅
