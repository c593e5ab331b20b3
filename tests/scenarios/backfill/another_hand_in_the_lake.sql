-- A verify finds what another hand did to the lake, whatever commits hang meanwhile, and nothing else; a repair makes it right.
-- alone
-- bound: chunk_rows = 4
-- mask: person.email sha256
-- leave out: person.secret

CREATE TABLE note (id int PRIMARY KEY, what text, body text STORAGE EXTERNAL);
INSERT INTO note SELECT i, 'old', repeat('o', 5000) FROM generate_series(1, 20) AS i;
CREATE TABLE worded (word char(2) PRIMARY KEY, n int);
INSERT INTO worded SELECT chr(64 + i) || 'x', i FROM generate_series(1, 20) AS i;
CREATE TABLE bag (what text, n int);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag SELECT 'x', i % 3 FROM generate_series(1, 9) AS i;
CREATE TABLE person (id int PRIMARY KEY, email text, secret text);
INSERT INTO person SELECT i, 'e' || i, 's' || i FROM generate_series(1, 3) AS i;
-- step: run
-- step: plan
-- step: read
-- step: end backfill
INSERT INTO note VALUES (30, 'new', 'n');
-- step: verify

-- In the lake the flipped cell is of a row that no change touches, and so are the others.
-- in the lake: UPDATE {current note} SET what = 'flipped' WHERE id = 10
-- in the lake: UPDATE {current note} SET body = 'short' WHERE id = 11
-- in the lake: UPDATE {current person} SET email = 'e2' WHERE id = 2
-- in the lake: DELETE FROM {current note} WHERE id = 12
-- in the lake: INSERT INTO {current note} (id, what) VALUES (99, 'nobody knows')
-- in the lake: DELETE FROM {current worded} WHERE word = 'Bx'
-- in the lake: INSERT INTO {current worded} (word, n) VALUES ('bx', 1)
-- in the lake: UPDATE {current bag} SET n = 7 WHERE n = 2
-- session: a
BEGIN;
UPDATE note SET what = 'a' WHERE id = 1;
DELETE FROM note WHERE id = 2;
INSERT INTO note VALUES (20 + 1, 'a', 'a');
UPDATE note SET id = 22, what = 'a' WHERE id = 3;
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE n = 1);
INSERT INTO bag VALUES ('a', 1);
UPDATE worded SET n = 0 WHERE word = 'Cx';
-- hang: a
-- at: low note
-- session: b
BEGIN;
UPDATE note SET what = 'b' WHERE id = 4;
INSERT INTO note VALUES (23, 'b', 'b');
-- hang: b
-- at: high note
-- session: main
UPDATE note SET what = 'main' WHERE id = 6;
DELETE FROM note WHERE id = 7;
-- step: verify
-- expect: differs note (missing=1, extra=1, differs=2)
-- expect: differs worded (missing=1, extra=1, differs=0)
-- expect: differs bag (missing=3, extra=3, differs=0)
-- expect: differs person (missing=0, extra=0, differs=1)
-- release: a
-- release: b
-- session: a
BEGIN;
UPDATE note SET what = 'again' WHERE id IN (1, 4);
DELETE FROM note WHERE id = 22;
-- hang: a
-- step: repair
-- expect: differs note (missing=1, extra=1, differs=2)
-- expect: differs worded (missing=1, extra=1, differs=0)
-- expect: differs bag (missing=3, extra=3, differs=0)
-- expect: differs person (missing=0, extra=0, differs=1)
-- release: a
-- step: run
-- step: verify
-- step: backfill again
