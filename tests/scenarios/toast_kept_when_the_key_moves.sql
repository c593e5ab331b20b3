-- The key changes and the large value is untouched: it lies under the old key, in the target or earlier in the batch.

CREATE TABLE note (id int PRIMARY KEY, title text, body text STORAGE EXTERNAL);
-- step: run

INSERT INTO note SELECT i, 'new', repeat(chr(96 + i), 5000) FROM generate_series(1, 6) i;
-- step: run

-- The base is in the target; a chain of moves, with a plain update between and after.
UPDATE note SET id = 11 WHERE id = 1;
UPDATE note SET id = 12 WHERE id = 2;
UPDATE note SET title = 'halfway' WHERE id = 12;
UPDATE note SET id = 22 WHERE id = 12;
UPDATE note SET id = 32, title = 'arrived' WHERE id = 22;
-- Row 3 moves away, another row takes its key, and both keep their own value.
UPDATE note SET id = 13 WHERE id = 3;
UPDATE note SET id = 3 WHERE id = 4;
-- The base is in the same batch.
INSERT INTO note VALUES (7, 'seven', repeat('g', 5000));
UPDATE note SET id = 17 WHERE id = 7;
-- Moved and deleted; moved there and back.
UPDATE note SET id = 15 WHERE id = 5;
DELETE FROM note WHERE id = 15;
UPDATE note SET id = 16 WHERE id = 6;
UPDATE note SET id = 6 WHERE id = 16;
-- step: run
-- expect: current note (id, title, left(body, 1), length(body))
--   3  | new     | d | 5000
--   6  | new     | f | 5000
--   11 | new     | a | 5000
--   13 | new     | c | 5000
--   17 | seven   | g | 5000
--   32 | arrived | b | 5000

-- Again, once the rows lie under their new keys.
UPDATE note SET title = 'settled';
UPDATE note SET id = id + 100;
-- step: run
-- expect: current note (id, title, left(body, 1), length(body))
--   103 | settled | d | 5000
--   106 | settled | f | 5000
--   111 | settled | a | 5000
--   113 | settled | c | 5000
--   117 | settled | g | 5000
--   132 | settled | b | 5000
