-- Unchanged large values are those of the chunk's row, for changes merged before it, unseen by it and above it.

CREATE TABLE note (id int PRIMARY KEY, title text, body text STORAGE EXTERNAL, other text STORAGE EXTERNAL);
INSERT INTO note SELECT i, 'old', repeat('b', 5000), repeat('o', 5000) FROM generate_series(1, 9) AS i;
-- step: run
UPDATE note SET title = 'merged before' WHERE id = 1;
UPDATE note SET id = 22 WHERE id = 2;
-- step: run
-- expect: current note (id, title, left(body, 1))
--   1  | merged before | ∅
--   22 | old           | ∅
UPDATE note SET title = 'staged before' WHERE id = 3;
-- step: drain
-- step: plan
-- at: high note
UPDATE note SET title = 'unseen' WHERE id = 4;
UPDATE note SET id = 25 WHERE id = 5;
UPDATE note SET body = repeat('n', 5000) WHERE id = 6;
-- step: read
UPDATE note SET title = 'above' WHERE id IN (1, 4, 7);
UPDATE note SET id = id + 100 WHERE id IN (22, 25, 8);
UPDATE note SET other = 'n' WHERE id = 6;
-- step: end backfill
-- expect: current note (id, title, left(body, 1), left(other, 1))
--   1   | above         | b | o
--   3   | staged before | b | o
--   4   | above         | b | o
--   6   | old           | n | n
--   7   | above         | b | o
--   9   | old           | b | o
--   108 | old           | b | o
--   122 | old           | b | o
--   125 | old           | b | o
-- step: run
-- step: backfill again
-- step: verify
