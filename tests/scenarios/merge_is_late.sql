-- Several runs could only drain: the next merge applies every batch that a table lacks, in order.

CREATE TABLE item (id int PRIMARY KEY, name text);
CREATE TABLE rare (id int PRIMARY KEY);
-- step: run
INSERT INTO item VALUES (1, 'a'), (2, 'a');
-- step: drain
-- step: confirm
-- expect: confirmed less than staged
UPDATE item SET name = 'b' WHERE id = 1;
INSERT INTO rare VALUES (1);
-- step: drain
DELETE FROM item WHERE id = 2;
UPDATE item SET id = 3 WHERE id = 1;
-- step: drain
-- step: merge
-- expect: confirmed less than staged
-- step: confirm
-- expect: confirmed everything
-- expect: current item (id, name)
--   3 | b
