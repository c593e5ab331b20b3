-- A key moves behind the reader with an unchanged large value: a hole, filled by its key, unknown in history for good.
-- chunk rows: 2

CREATE TABLE note (id int PRIMARY KEY, title text, body text STORAGE EXTERNAL);
INSERT INTO note SELECT i * 10, 'old', repeat('o', 5000) FROM generate_series(1, 6) AS i;
-- step: run
-- step: run
-- step: plan
-- at: high note
UPDATE note SET id = 1, title = 'moved' WHERE id = 60;
UPDATE note SET title = 'changed ahead of the reader' WHERE id = 50;
-- step: read
-- step: end backfill
-- expect: needs backfill note (body)
-- expect: current note (id, title, left(body, 1))
--   1  | moved                       | ∅
--   10 | old                         | o
--   20 | old                         | o
--   30 | old                         | o
--   40 | old                         | o
--   50 | changed ahead of the reader | o
-- step: backfill wanted
-- expect: merging note
-- expect: current note (id, title, left(body, 1))
--   1  | moved                       | o
--   10 | old                         | o
--   20 | old                         | o
--   30 | old                         | o
--   40 | old                         | o
--   50 | changed ahead of the reader | o
-- expect: history note (_op, id, left(body, 1), _unchanged)
--   delete | 60 | ∅ | ∅
--   insert | 1  | ∅ | body
--   update | 50 | ∅ | body
--   read   | 10 | o | ∅
--   read   | 20 | o | ∅
--   read   | 30 | o | ∅
--   read   | 40 | o | ∅
--   read   | 50 | o | ∅
--   read   | 1  | o | ∅
-- step: run
-- step: backfill again
-- step: verify
