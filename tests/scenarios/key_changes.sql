-- An update of the key is two rows in history, a delete of the old key and an insert of the new one, with one order key.

CREATE TABLE item (code text PRIMARY KEY, price numeric(8,2));
-- step: run

INSERT INTO item VALUES ('a', 1), ('b', 2), ('c', 3);
-- step: run
UPDATE item SET code = 'A', price = 1.5 WHERE code = 'a';
DELETE FROM item WHERE code = 'b';
UPDATE item SET code = 'b' WHERE code = 'c';
-- step: run
-- expect: history item (_op, code, price)
--   insert | a | 1.00
--   insert | b | 2.00
--   insert | c | 3.00
--   delete | a | *
--   insert | A | 1.50
--   delete | b | *
--   delete | c | *
--   insert | b | 3.00

-- The key moves away, and its place is taken.
BEGIN;
UPDATE item SET code = 'z' WHERE code = 'A';
INSERT INTO item VALUES ('A', 9);
UPDATE item SET price = price + 1 WHERE code = 'z';
COMMIT;
-- step: run
-- expect: current item (code, price)
--   A | 9.00
--   b | 3.00
--   z | 2.50
