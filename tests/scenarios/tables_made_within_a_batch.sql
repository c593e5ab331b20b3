-- A publication FOR ALL TABLES brings tables that are made and filled in the middle of a batch, and altered behind that.
-- The next run joins them; the backfill that they ask for finds what the stream has brought.
-- alone

CREATE PUBLICATION tidemark_tables_made_within_a_batch FOR ALL TABLES WITH (publish_via_partition_root);
CREATE TABLE first (id int PRIMARY KEY, name text);
-- step: run
INSERT INTO first VALUES (1, 'old');
-- step: run
INSERT INTO first VALUES (2, 'before');
BEGIN;
CREATE TABLE keyed (id int PRIMARY KEY, name text);
INSERT INTO keyed SELECT n, 'within' FROM generate_series(1, 4) n;
UPDATE first SET name = 'between' WHERE id = 1;
UPDATE keyed SET name = 'changed within' WHERE id = 2;
DELETE FROM keyed WHERE id = 4;
COMMIT;
CREATE TABLE whole (name text, size int);
ALTER TABLE whole REPLICA IDENTITY FULL;
INSERT INTO whole VALUES ('one', 1), ('one', 1), ('two', 2);
UPDATE whole SET size = 3 WHERE name = 'two';
CREATE TABLE parted (id int, part int, name text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
INSERT INTO parted VALUES (1, 1, 'within'), (2, 1, 'within');
CREATE TABLE passing (id int PRIMARY KEY);
INSERT INTO passing VALUES (1);
DROP TABLE passing;
INSERT INTO first VALUES (3, 'behind');
-- step: drain
INSERT INTO keyed VALUES (5, 'behind');
ALTER TABLE keyed ADD COLUMN size int DEFAULT 7;
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2);
UPDATE parted SET part = 2 WHERE id = 2;
ALTER TABLE whole RENAME COLUMN size TO amount;
DELETE FROM whole WHERE ctid = (SELECT min(ctid) FROM whole);
UPDATE keyed SET size = 8 WHERE id = 3;
-- step: run
-- expect: tables first, keyed, parted, whole
-- expect: needs backfill keyed (had rows before it was captured)
-- expect: needs backfill parted (had rows before it was captured)
-- expect: needs backfill whole (had rows before it was captured)
-- step: backfill wanted
-- expect: merging first
-- expect: merging keyed
-- expect: merging parted
-- expect: merging whole
-- expect: history keyed (_op, id, name)
--   insert | 1 | within
--   insert | 2 | within
--   insert | 3 | within
--   insert | 4 | within
--   update | 2 | changed within
--   delete | 4 | *
--   insert | 5 | behind
--   update | 3 | within
-- expect: history parted (_op, id, part)
--   insert | 1 | 1
--   insert | 2 | 1
--   delete | 2 | 1
--   insert | 2 | 2
