-- Rows that a backfill reads keep the texts of what does not fit: without a key, and under a change that the chunk did not see.
-- capture: *, log

CREATE TABLE odd (id int PRIMARY KEY, title text, n int[], d date);
ALTER TABLE odd ALTER n SET STORAGE EXTERNAL;
INSERT INTO odd SELECT i, 'old', ('[0:999]={' || repeat('7,', 999) || '7}')::int[], 'infinity' FROM generate_series(1, 5) AS i;
CREATE TABLE bag (what int, d date);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag VALUES (1, 'infinity'), (1, 'infinity'), (1, '12000-01-01'), (1, '9999-12-31'), (2, '-infinity');
CREATE TABLE log (what int, d date);
INSERT INTO log VALUES (1, 'infinity'), (2, '9999-12-31');
-- step: run
INSERT INTO bag VALUES (3, 'infinity'), (4, '-infinity'), (5, '0044-03-15 BC');
UPDATE bag SET what = 6 WHERE what = 3;
UPDATE bag SET d = 'infinity' WHERE what = 5;
DELETE FROM bag WHERE what = 4;
INSERT INTO log VALUES (3, '12000-01-01');
-- step: run
-- expect: history bag (_op, what, d, _text['d'])
--   insert | 3 | 9999-12-31 | infinity
--   insert | 4 | 0001-01-01 | -infinity
--   insert | 5 | 0001-01-01 | 0044-03-15 BC
--   delete | 3 | 9999-12-31 | infinity
--   insert | 6 | 9999-12-31 | infinity
--   delete | 5 | 0001-01-01 | 0044-03-15 BC
--   insert | 5 | 9999-12-31 | infinity
--   delete | 4 | 0001-01-01 | -infinity
-- step: plan

-- session: a
BEGIN;
UPDATE odd SET title = 'a' WHERE id = 1;
UPDATE odd SET n = ('[5:1004]={' || repeat('7,', 999) || '7}')::int[] WHERE id = 2;
UPDATE odd SET title = 'a' WHERE id = 2;
DELETE FROM odd WHERE id = 3;
UPDATE odd SET id = 3 WHERE id = 4;
DELETE FROM bag WHERE what = 2;
UPDATE bag SET what = 7 WHERE what = 6;
-- hang: a
-- step: read
-- release: a
-- step: end backfill
-- expect: history odd (_op, id, title, left(_text['n'], 8), _text['d'])
--   update | 1 | a   | [0:999]= | infinity
--   update | 2 | old | [5:1004] | infinity
--   update | 2 | a   | ∅        | infinity
--   delete | 3 | ∅   | ∅        | ∅
--   delete | 4 | ∅   | ∅        | ∅
--   insert | 3 | old | [0:999]= | infinity
--   read   | 5 | old | [0:999]= | infinity
-- expect: history bag (_op, what, d, _text['d'])
--   insert | 3 | 9999-12-31 | infinity
--   insert | 4 | 0001-01-01 | -infinity
--   insert | 5 | 0001-01-01 | 0044-03-15 BC
--   delete | 3 | 9999-12-31 | infinity
--   insert | 6 | 9999-12-31 | infinity
--   delete | 5 | 0001-01-01 | 0044-03-15 BC
--   insert | 5 | 9999-12-31 | infinity
--   delete | 4 | 0001-01-01 | -infinity
--   delete | 2 | 0001-01-01 | -infinity
--   delete | 6 | 9999-12-31 | infinity
--   insert | 7 | 9999-12-31 | infinity
--   read   | 1 | 9999-12-31 | 12000-01-01
--   read   | 1 | 9999-12-31 | infinity
--   read   | 1 | 9999-12-31 | infinity
--   read   | 1 | 9999-12-31 | ∅
--   read   | 2 | 0001-01-01 | -infinity
-- expect: history log (_op, what, d, _text['d'])
--   insert | 3 | 9999-12-31 | 12000-01-01
--   read   | 1 | 9999-12-31 | infinity
--   read   | 2 | 9999-12-31 | ∅
-- step: run
-- step: backfill again
-- step: verify
