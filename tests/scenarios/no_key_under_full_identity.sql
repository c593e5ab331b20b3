-- Without a key and under FULL identity `current` is a multiset: an update or delete touches one of several equal rows.

CREATE TABLE reading (sensor text, value float8, body text STORAGE EXTERNAL);
ALTER TABLE reading REPLICA IDENTITY FULL;
-- step: run
INSERT INTO reading VALUES ('a', 1), ('a', 1), ('a', 1), ('b', NULL), ('b', NULL), (NULL, NULL);
INSERT INTO reading VALUES ('big', 1, repeat('x', 5000));
-- step: run
-- expect: current reading (sensor, value, length(body))
--   ∅   | ∅   | ∅
--   a   | 1.0 | ∅
--   a   | 1.0 | ∅
--   a   | 1.0 | ∅
--   b   | ∅   | ∅
--   b   | ∅   | ∅
--   big | 1.0 | 5000
DELETE FROM reading WHERE ctid = (SELECT min(ctid) FROM reading WHERE sensor = 'a');
UPDATE reading SET value = 2 WHERE ctid = (SELECT min(ctid) FROM reading WHERE sensor = 'a');
DELETE FROM reading WHERE sensor IS NULL;
UPDATE reading SET value = 7 WHERE sensor = 'b';
UPDATE reading SET value = 2 WHERE sensor = 'big';
INSERT INTO reading VALUES ('c', 1), ('c', 1);
DELETE FROM reading WHERE ctid = (SELECT min(ctid) FROM reading WHERE sensor = 'c');
-- step: run
-- expect: current reading (sensor, value, length(body))
--   a   | 1.0 | ∅
--   a   | 2.0 | ∅
--   b   | 7.0 | ∅
--   b   | 7.0 | ∅
--   big | 2.0 | 5000
--   c   | 1.0 | ∅
UPDATE reading SET value = 1 WHERE sensor = 'a';
TRUNCATE reading;
INSERT INTO reading VALUES ('z', 'NaN'), ('z', 'NaN'), ('zero', 0), ('zero', '-0');
DELETE FROM reading WHERE ctid = (SELECT min(ctid) FROM reading);
-- step: run
