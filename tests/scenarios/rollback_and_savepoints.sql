-- What was rolled back never happened: whole transactions, savepoints, failed blocks inside a function.

CREATE TABLE account (id int PRIMARY KEY, amount int NOT NULL);
-- step: run

BEGIN;
INSERT INTO account VALUES (1, 100);
ROLLBACK;
BEGIN;
INSERT INTO account VALUES (2, 200);
SAVEPOINT first;
INSERT INTO account VALUES (3, 300);
UPDATE account SET amount = 0;
SAVEPOINT second;
DELETE FROM account;
ROLLBACK TO first;
INSERT INTO account VALUES (4, 400);
RELEASE first;
COMMIT;
DO $$
BEGIN
  INSERT INTO account VALUES (5, 500);
  BEGIN
    INSERT INTO account VALUES (6, 600), (5, 0);
  EXCEPTION WHEN unique_violation THEN
    INSERT INTO account VALUES (7, 700);
  END;
END $$;
-- step: run
-- expect: history account (_op, id, amount)
--   insert | 2 | 200
--   insert | 4 | 400
--   insert | 5 | 500
--   insert | 7 | 700
