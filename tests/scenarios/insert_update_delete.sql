-- Inserts, updates and deletes arrive in commit order; several changes of one statement share one transaction.

CREATE TABLE customer (id int PRIMARY KEY, name text, credit numeric(10,2));
-- step: run

INSERT INTO customer VALUES (1, 'Ada', 10), (2, 'Ben', 20.5), (3, '', NULL);
UPDATE customer SET credit = credit + 1 WHERE id < 3;
DELETE FROM customer WHERE id = 2;
-- step: run
-- expect: history customer (_op, id, name, credit)
--   insert | 1 | Ada | 10.00
--   insert | 2 | Ben | 20.50
--   insert | 3 |     | ∅
--   update | 1 | Ada | 11.00
--   update | 2 | Ben | 21.50
--   delete | 2 | *   | *

UPDATE customer SET name = NULL;
INSERT INTO customer VALUES (3, 'Eve', 0) ON CONFLICT (id) DO UPDATE SET name = excluded.name, credit = -1;
-- step: run
-- expect: current customer (id, name, credit)
--   1 | ∅   | 11.00
--   3 | Eve | -1.00
