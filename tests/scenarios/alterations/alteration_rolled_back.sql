-- A column comes, is written to and is taken back to a savepoint; another one gets its number.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name text);
CREATE TABLE line (id int PRIMARY KEY, item int REFERENCES item ON DELETE CASCADE);
-- part: rows
INSERT INTO item SELECT n, 'old' FROM generate_series(1, 4) n;
INSERT INTO line SELECT n, n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET name = 'before' WHERE id = 2;
-- part: alteration
BEGIN;
SAVEPOINT here;
ALTER TABLE item ADD COLUMN size int DEFAULT 7;
UPDATE item SET size = 8 WHERE id = 1;
ROLLBACK TO here;
TRUNCATE item CASCADE;
ROLLBACK TO here;
ALTER TABLE item ADD COLUMN price text DEFAULT 'none';
UPDATE item SET price = 'high' WHERE id = 4;
COMMIT;
-- part: after
UPDATE item SET name = 'after' WHERE id = 3;
UPDATE line SET item = 1 WHERE id = 2;
-- outcome: merging item
-- outcome: merging line
-- outcome: columns item (id, name, price)
