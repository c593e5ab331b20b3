-- A run killed at each of its steps in turn, by SIGKILL: whatever died where, the next run applies every change once.

CREATE TABLE item (id int PRIMARY KEY, name text, body text STORAGE EXTERNAL);
CREATE TABLE bag (what text);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE event (id int PRIMARY KEY, what text);
-- step: run
INSERT INTO item SELECT i, 'new', repeat('n', 4000) FROM generate_series(1, 20) AS i;
INSERT INTO bag VALUES ('twice'), ('twice'), ('once');
INSERT INTO event SELECT i, 'one' FROM generate_series(1, 5) AS i;
-- step: crash at drain.before_files
UPDATE item SET name = 'changed' WHERE id % 4 = 0;
-- step: crash at drain.after_files
UPDATE item SET id = -id WHERE id % 4 = 1;
-- step: crash at drain.before_manifest
DELETE FROM item WHERE id % 4 = 2;
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag);
-- step: crash at drain.after_manifest
BEGIN;
TRUNCATE event;
INSERT INTO event VALUES (1, 'after the truncate');
COMMIT;
-- step: crash at drain.before_register
UPDATE item SET name = 'changed again' WHERE id < 0;
INSERT INTO bag VALUES ('twice'), ('once');
-- step: crash at drain.after_register
-- step: crash at merge.after_plan
-- step: crash at merge.before_history
-- step: crash at merge.after_history
-- step: crash at merge.before_current
-- step: crash at merge.after_current
-- step: crash at merge.before_result
-- step: crash at merge.after_result
-- step: crash at merge.after_ingest
-- step: crash at confirm.before_confirm
-- expect: confirmed less than staged
-- step: crash at confirm.after_confirm
-- step: retry
-- expect: confirmed everything
-- expect: current event (id, what)
--   1 | after the truncate
