-- Of a paused table nothing is merged, while its changes are staged and the other tables go on; once it is resumed, all of
-- it is applied in order.

CREATE TABLE item (id int PRIMARY KEY, name text);
CREATE TABLE other (id int PRIMARY KEY);
-- step: run
INSERT INTO item VALUES (1, 'before');
-- step: run

-- pause: item
UPDATE item SET name = 'first' WHERE id = 1;
INSERT INTO item VALUES (2, 'new');
INSERT INTO other VALUES (1);
-- step: run
-- expect: paused item (by somebody)
-- expect: history item (_op, id, name)
--   insert | 1 | before
-- expect: current other (id)
--   1

UPDATE item SET name = 'second' WHERE id = 1;
DELETE FROM item WHERE id = 2;
-- step: run
-- expect: paused item ()
-- expect: current item (id, name)
--   1 | before

-- resume: item
-- step: run
-- expect: merging item
-- expect: history item (_op, id, name)
--   insert | 1 | before
--   update | 1 | first
--   insert | 2 | new
--   update | 1 | second
--   delete | 2 | ∅
