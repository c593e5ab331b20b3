-- ADD COLUMN … DEFAULT with a constant gives every older row a value without one change in the stream: the merge gives it
-- to them, of every type; history says in the column's metadata what its older rows mean. In the middle of a batch, with
-- changes on both sides; where the default is taken away or replaced before anybody looked; twice between two runs; where
-- the table got new storage since; for a table without key.

CREATE TABLE item (id int PRIMARY KEY, name text);
CREATE TABLE quiet (id int PRIMARY KEY);
CREATE TABLE bag (name text);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE rewritten (id int PRIMARY KEY);
CREATE TABLE fresh (id int PRIMARY KEY);
-- step: run
INSERT INTO item SELECT n, 'before' FROM generate_series(1, 4) n;
INSERT INTO quiet VALUES (1), (2);
INSERT INTO bag VALUES ('a'), ('a'), ('b');
INSERT INTO rewritten VALUES (1);
INSERT INTO fresh VALUES (1);
-- step: run
UPDATE item SET name = 'old shape' WHERE id = 2;
DELETE FROM item WHERE id = 4;
INSERT INTO item VALUES (5, 'old shape');
ALTER TABLE item ADD COLUMN state text NOT NULL DEFAULT 'it''s "open"\', ADD COLUMN n numeric(8,2) DEFAULT 1.5;
ALTER TABLE item ALTER COLUMN state SET DEFAULT 'later', ALTER COLUMN n DROP DEFAULT;
UPDATE item SET name = 'new shape' WHERE id = 3;
UPDATE item SET n = NULL WHERE id = 5;
INSERT INTO item VALUES (6, 'new shape');
ALTER TABLE quiet ADD COLUMN flag boolean DEFAULT true;
ALTER TABLE bag ADD COLUMN day date DEFAULT '2026-02-03';
DELETE FROM bag WHERE name = 'b';
ALTER TABLE rewritten ADD COLUMN size int DEFAULT 7;
VACUUM FULL rewritten;
INSERT INTO rewritten VALUES (2, 2);
ALTER TABLE fresh ADD COLUMN made timestamptz DEFAULT clock_timestamp();
INSERT INTO fresh VALUES (2, '2026-01-01Z');
-- step: run
-- expect: merging item
-- expect: merging bag
-- expect: current quiet (id, flag)
--   1 | True
--   2 | True
-- expect: needs backfill rewritten (rewritten and "size")
-- expect: needs backfill fresh (rewritten and)
-- expect: current item (id, name, state, n)
--   1 | before    | it's "open"\ | 1.50
--   2 | old shape | it's "open"\ | 1.50
--   3 | new shape | it's "open"\ | 1.50
--   5 | old shape | it's "open"\ | ∅
--   6 | new shape | later        | ∅
-- expect: history item (_op, id, n)
--   insert | 1 | ∅
--   insert | 2 | ∅
--   insert | 3 | ∅
--   insert | 4 | ∅
--   update | 2 | 1.50
--   delete | 4 | ∅
--   insert | 5 | 1.50
--   update | 3 | 1.50
--   update | 5 | ∅
--   insert | 6 | ∅
ALTER TABLE quiet ADD COLUMN more bigint DEFAULT 12345678901;
ALTER TABLE bag ADD COLUMN tag varchar(5) DEFAULT '';
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag);
ALTER TABLE item DROP COLUMN n, ADD COLUMN n2 real DEFAULT 0.1;
UPDATE item SET name = 'after the drop' WHERE id = 1;
-- step: run
-- expect: merging bag
-- expect: needs backfill item~3 (not certain.*built anew)
-- expect: current quiet (id, flag, more)
--   1 | True | 12345678901
--   2 | True | 12345678901
UPDATE quiet SET id = 3 WHERE id = 2;
-- step: run
-- expect: merging quiet
-- expect: needs backfill item~3 (not certain.*built anew)
-- expect: current quiet (id, flag, more)
--   1 | True | 12345678901
--   3 | True | 12345678901
