-- Rows that somebody altered, removed and invented in the lake are as at the source again, and nothing else is touched.

CREATE TABLE item (id int PRIMARY KEY, what text);
INSERT INTO item SELECT i, 'row ' || i FROM generate_series(1, 5) AS i;
CREATE TABLE bag (what text);
ALTER TABLE bag REPLICA IDENTITY FULL;
-- step: run
INSERT INTO item SELECT i, 'row ' || i FROM generate_series(6, 9) AS i;
INSERT INTO bag VALUES ('x'), ('x'), ('y');
-- step: run
-- in the lake: UPDATE {current item} SET what = 'altered' WHERE id = 6
-- in the lake: DELETE FROM {current item} WHERE id = 7
-- in the lake: INSERT INTO {current item} (id, what) VALUES (1, 'false'), (70, 'invented'), (71, 'invented')
-- in the lake: INSERT INTO {current bag} (what) VALUES ('x'), ('invented')
-- in the lake: DELETE FROM {current bag} WHERE what = 'y'
-- step: plan
-- at: high item
INSERT INTO item VALUES (71, 'true by now');
-- step: read
-- step: end backfill
-- expect: report item (read=9, inserted=5, repaired=2, unchanged=2, swept=1)
-- expect: history item (_op, id, what)
--   insert | 6  | row 6
--   insert | 7  | row 7
--   insert | 8  | row 8
--   insert | 9  | row 9
--   insert | 71 | true by now
--   *      | *  | *
--   *      | *  | *
--   *      | *  | *
--   *      | *  | *
--   *      | *  | *
--   *      | *  | *
--   *      | *  | *
--   *      | *  | *
-- step: run
-- step: backfill again
-- step: verify
