-- Without any identity (NOTHING, or no primary key by default) PostgreSQL allows inserts and truncates only: there is a
-- history and no `current`. Such a table is named: a pattern alone never makes PostgreSQL refuse its application's updates.
-- capture: log, silent

CREATE TABLE log (at int, what text);
CREATE TABLE silent (id int PRIMARY KEY, what text);
ALTER TABLE silent REPLICA IDENTITY NOTHING;
-- step: run
INSERT INTO log VALUES (1, 'a'), (1, 'a'), (2, NULL);
INSERT INTO silent VALUES (1, 'x');
-- step: run
-- expect: history log (_op, at, what)
--   insert | 1 | a
--   insert | 1 | a
--   insert | 2 | ∅
-- expect: no current log
-- expect: no current silent
TRUNCATE log;
INSERT INTO log VALUES (3, 'c');
-- step: run
-- expect: history log (_op, at, what)
--   insert   | 1 | a
--   insert   | 1 | a
--   insert   | 2 | ∅
--   truncate | ∅ | ∅
--   insert   | 3 | c
