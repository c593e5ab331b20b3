-- A column with a volatile default is added: every row is written anew, and the stream shows none of them.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name text);
-- part: rows
INSERT INTO item SELECT n, 'old' FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
ALTER TABLE item ADD COLUMN at timestamptz DEFAULT clock_timestamp();
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
INSERT INTO item (id, name) VALUES (5, 'new');
-- outcome: needs backfill item (rewritten)
