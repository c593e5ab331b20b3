-- A large value that an UPDATE did not touch is not in the stream: `current` keeps it, `history` carries it, marked.

CREATE TABLE note (id int PRIMARY KEY, title text, body text STORAGE EXTERNAL, more text STORAGE EXTERNAL);
-- step: run

INSERT INTO note SELECT i, 'new', repeat(i::text, 5000), repeat('m', 4000) FROM generate_series(1, 4) i;
-- step: run

-- The whole batch holds nothing but updates that leave both large columns untouched.
UPDATE note SET title = 'changed' WHERE id <= 2;
-- step: run
-- expect: history note (_op, id, title, left(body, 2), length(body), length(more), _unchanged)
--   insert | 1 | new     | 11 | 5000 | 4000 | ∅
--   insert | 2 | new     | 22 | 5000 | 4000 | ∅
--   insert | 3 | new     | 33 | 5000 | 4000 | ∅
--   insert | 4 | new     | 44 | 5000 | 4000 | ∅
--   update | 1 | changed | 11 | 5000 | 4000 | body more
--   update | 2 | changed | 22 | 5000 | 4000 | body more

-- One large column changes, the other does not; a large value becomes NULL, another one short.
UPDATE note SET body = repeat('z', 6000) WHERE id = 1;
UPDATE note SET body = NULL WHERE id = 2;
UPDATE note SET more = 'short' WHERE id = 3;
UPDATE note SET title = 'again' WHERE id <= 3;
-- step: run
-- expect: current note (id, title, left(body, 1), length(body), length(more))
--   1 | again | z | 6000 | 4000
--   2 | again | ∅ | ∅    | 4000
--   3 | again | 3 | 5000 | 5
--   4 | new   | 4 | 5000 | 4000
