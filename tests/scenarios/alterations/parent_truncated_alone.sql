-- A table is truncated without its children, then with them.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, name text);
CREATE TABLE special (PRIMARY KEY (id)) INHERITS (item);
CREATE TABLE ordinary (PRIMARY KEY (id)) INHERITS (item);
-- part: rows
INSERT INTO item SELECT n, 'old' FROM generate_series(1, 4) n;
INSERT INTO special SELECT n, 'old' FROM generate_series(11, 14) n;
INSERT INTO ordinary SELECT n, 'old' FROM generate_series(21, 24) n;
-- part: before
UPDATE item SET name = 'before' WHERE id IN (2, 12, 22);
-- part: alteration
TRUNCATE ONLY item;
ALTER TABLE special NO INHERIT item;
INSERT INTO item VALUES (5, 'between');
TRUNCATE item;
-- part: after
INSERT INTO item VALUES (6, 'after');
UPDATE special SET name = 'after' WHERE id = 13;
INSERT INTO ordinary VALUES (25, 'after');
-- outcome: merging item
-- outcome: merging special
-- outcome: merging ordinary
