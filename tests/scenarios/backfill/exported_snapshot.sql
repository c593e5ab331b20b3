-- One snapshot for all chunks: what commits behind its consistent point is not in it, whenever its chunk is read.
-- alone
-- mode: exported_snapshot

CREATE TABLE item (id int PRIMARY KEY, what text, body text STORAGE EXTERNAL);
INSERT INTO item SELECT i, 'old', repeat('o', 5000) FROM generate_series(1, 9) AS i;
CREATE TABLE bag (what text);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag VALUES ('x'), ('x'), ('y');
-- step: run
INSERT INTO item VALUES (10, 'merged before', 'm');
-- step: run
DELETE FROM item WHERE id = 9;
-- step: drain
-- step: plan
UPDATE item SET what = 'in the snapshot' WHERE id = 1;
-- at: export
UPDATE item SET what = 'behind it' WHERE id = 2;
DELETE FROM item WHERE id = 3;
UPDATE item SET id = 11 WHERE id = 4;
INSERT INTO item VALUES (12, 'behind it', 'b');
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag);
INSERT INTO bag VALUES ('z');
-- step: read
UPDATE item SET what = 'above' WHERE id IN (2, 5);
-- step: end backfill
-- expect: report item (read=9, inserted=4, repaired=1, unchanged=1, overtaken=3, swept=0)
-- step: run
-- step: backfill again
-- step: verify
