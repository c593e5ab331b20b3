-- A column that was added to a table that nobody writes to: `current` has it with the next run, and in every row the
-- default, if it was added with one. Also where only a backfill read the table, where it has no key, where it is
-- partitioned, where other columns were dropped or renamed beside it, and where a change came before the column.
-- alone
-- capture: item, filled, bag, read_alone, root, more_changes, written_before, idle, history_only, beside_another_type

CREATE TABLE read_alone (id int PRIMARY KEY, name text);
INSERT INTO read_alone VALUES (1, 'before');
CREATE TABLE item (id int PRIMARY KEY, name text);
CREATE TABLE filled (id int PRIMARY KEY, name text);
CREATE TABLE bag (name text);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE root (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);
CREATE TABLE root_1 PARTITION OF root FOR VALUES FROM (0) TO (1000);
CREATE TABLE more_changes (id int PRIMARY KEY, name text, old int);
CREATE TABLE written_before (id int PRIMARY KEY, name text);
CREATE TABLE idle (id int PRIMARY KEY, name text);
CREATE TABLE history_only (name text);
CREATE TABLE beside_another_type (id int PRIMARY KEY, size int);
-- step: run
-- expect: needs backfill read_alone (.*)
-- step: backfill wanted
INSERT INTO item VALUES (1, 'before');
INSERT INTO filled VALUES (1, 'before'), (2, 'before');
INSERT INTO bag VALUES ('a'), ('a');
INSERT INTO root VALUES (1, 'before');
INSERT INTO more_changes VALUES (1, 'before', 1);
INSERT INTO written_before VALUES (1, 'before');
INSERT INTO history_only VALUES ('before');
INSERT INTO beside_another_type VALUES (1, 1);
-- step: run
ALTER TABLE item ADD COLUMN later int;
ALTER TABLE filled ADD COLUMN state text NOT NULL DEFAULT 'open', ADD COLUMN later date;
ALTER TABLE bag ADD COLUMN size int DEFAULT 7;
ALTER TABLE read_alone ADD COLUMN state text DEFAULT 'open';
ALTER TABLE root ADD COLUMN state text DEFAULT 'open';
ALTER TABLE more_changes DROP COLUMN old, ADD COLUMN state text DEFAULT 'open';
ALTER TABLE more_changes RENAME COLUMN name TO called;
UPDATE written_before SET name = 'changed';
ALTER TABLE written_before ADD COLUMN state text DEFAULT 'open';
ALTER TABLE idle ADD COLUMN state text DEFAULT 'open';
ALTER TABLE history_only ADD COLUMN state text DEFAULT 'open';
ALTER TABLE beside_another_type ADD COLUMN state text DEFAULT 'open', ALTER COLUMN size TYPE text;
-- step: run
-- expect: merging item
-- expect: merging filled
-- expect: current item (id, name, later)
--   1 | before | ∅
-- expect: current filled (id, state, later)
--   1 | open | ∅
--   2 | open | ∅
-- expect: current bag (name, size)
--   a | 7
--   a | 7
-- expect: current read_alone (id, name, state)
--   1 | before | open
-- expect: current root (id, name, state)
--   1 | before | open
-- expect: current more_changes (id, called, state)
--   1 | before | open
-- expect: current written_before (id, name, state)
--   1 | changed | open
-- expect: needs backfill beside_another_type~2 (size.*)
UPDATE item SET later = 1;
UPDATE filled SET state = 'closed' WHERE id = 1;
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag);
UPDATE more_changes SET called = 'after';
INSERT INTO idle VALUES (1, 'first');
-- step: run
-- expect: current filled (id, state, later)
--   1 | closed | ∅
--   2 | open   | ∅
-- expect: current more_changes (id, called, state)
--   1 | after | open
