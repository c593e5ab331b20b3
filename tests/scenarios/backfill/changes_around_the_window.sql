-- Deletes, changed keys, insert-delete-insert and the reverse, at every moment around a chunk.

CREATE TABLE item (id int PRIMARY KEY, what text, body text STORAGE EXTERNAL);
INSERT INTO item SELECT i, 'old', repeat('o', 5000) FROM generate_series(1, 70) AS i;
CREATE PROCEDURE around(n int, said text) LANGUAGE plpgsql AS $$
BEGIN
  UPDATE item SET what = said WHERE id = n;
  COMMIT;
  DELETE FROM item WHERE id = n + 1;
  COMMIT;
  UPDATE item SET id = n + 100, what = said WHERE id = n + 2;
  COMMIT;
  DELETE FROM item WHERE id = n + 3;
  COMMIT;
  INSERT INTO item VALUES (n + 3, said, 'new');
  COMMIT;
  INSERT INTO item VALUES (n + 101, said, 'gone');
  COMMIT;
  DELETE FROM item WHERE id = n + 101;
  COMMIT;
  INSERT INTO item VALUES (n + 101, said, 'again');
  COMMIT;
  INSERT INTO item VALUES (n + 102, said, 'gone');
  COMMIT;
  DELETE FROM item WHERE id = n + 102;
  COMMIT;
  DELETE FROM item WHERE id = n + 4;
  INSERT INTO item VALUES (n + 4, said, 'gone');
  DELETE FROM item WHERE id = n + 4;
  INSERT INTO item VALUES (n + 4, said, repeat('n', 5000));
  COMMIT;
  UPDATE item SET id = n + 103 WHERE id = n + 5;
  COMMIT;
  UPDATE item SET id = n + 5, what = said WHERE id = n + 103;
  COMMIT;
END $$;
-- step: run
CALL around(1, 'merged before');
-- step: run
CALL around(11, 'staged before');
-- step: drain
-- step: plan
CALL around(21, 'before the low watermark');
-- at: low item
CALL around(31, 'between low watermark and snapshot');
UPDATE item SET what = 'seen again' WHERE id IN (1, 11);
-- at: high item
CALL around(41, 'between snapshot and high watermark');
UPDATE item SET what = 'unseen', id = id + 1000 WHERE id IN (4, 14, 24);
-- step: read
CALL around(51, 'above the high watermark');
DELETE FROM item WHERE id IN (5, 15, 25, 35, 45);
-- step: end backfill
-- expect: report item (swept=0)
CALL around(61, 'a run later');
-- step: run
-- step: backfill again
-- step: verify
