-- A key that is dropped and made again between two looks at the catalogue, of the same columns: while the identity was
-- FULL the stream says nothing of it, and rows that shared a key in between are one row to the merge. Whatever the
-- identity was before and is behind it, the table is marked, and its backfill brings what is missing.
-- alone

CREATE TABLE full_behind (id int PRIMARY KEY, s text);
CREATE TABLE default_behind (id int PRIMARY KEY, s text);
CREATE TABLE full_before (id int PRIMARY KEY, s text);
ALTER TABLE full_before REPLICA IDENTITY FULL;
CREATE TABLE by_index (id int NOT NULL, s text);
CREATE UNIQUE INDEX by_index_id ON by_index (id);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_id;
CREATE TABLE index_behind (id int PRIMARY KEY, s text);
CREATE TABLE at_once (id int PRIMARY KEY, s text);
CREATE TABLE other_between (id int PRIMARY KEY, s text);
CREATE TABLE root (id int PRIMARY KEY, s text) PARTITION BY RANGE (id);
CREATE TABLE root_1 PARTITION OF root FOR VALUES FROM (0) TO (1000);
CREATE TABLE other_key (id int PRIMARY KEY, s text NOT NULL);
CREATE TABLE nothing_between (id int PRIMARY KEY, s text);
CREATE TABLE index_and_back (id int PRIMARY KEY, s text NOT NULL UNIQUE);
-- capture: full_behind, default_behind, full_before, by_index, index_behind, at_once, other_between, root, other_key, nothing_between, index_and_back
-- step: run
INSERT INTO full_behind SELECT i, 's' || i FROM generate_series(1, 100) i;
INSERT INTO default_behind SELECT * FROM full_behind;
INSERT INTO full_before SELECT * FROM full_behind;
INSERT INTO by_index SELECT * FROM full_behind;
INSERT INTO index_behind SELECT * FROM full_behind;
INSERT INTO at_once SELECT * FROM full_behind;
INSERT INTO other_between SELECT * FROM full_behind;
INSERT INTO root SELECT * FROM full_behind;
INSERT INTO other_key SELECT * FROM full_behind;
INSERT INTO nothing_between SELECT * FROM full_behind;
INSERT INTO index_and_back SELECT * FROM full_behind;
-- step: run
UPDATE full_behind SET s = 'u' || id WHERE id <= 10;
ALTER TABLE full_behind REPLICA IDENTITY FULL;
ALTER TABLE full_behind DROP CONSTRAINT full_behind_pkey;
INSERT INTO full_behind VALUES (60, 'another');
DELETE FROM full_behind WHERE id = 60 AND s = 's60';
ALTER TABLE full_behind ADD PRIMARY KEY (id);
UPDATE default_behind SET s = 'u' || id WHERE id <= 10;
ALTER TABLE default_behind REPLICA IDENTITY FULL;
ALTER TABLE default_behind DROP CONSTRAINT default_behind_pkey;
INSERT INTO default_behind VALUES (60, 'another');
DELETE FROM default_behind WHERE id = 60 AND s = 's60';
ALTER TABLE default_behind ADD PRIMARY KEY (id);
ALTER TABLE default_behind REPLICA IDENTITY DEFAULT;
ALTER TABLE full_before DROP CONSTRAINT full_before_pkey;
INSERT INTO full_before VALUES (60, 'another');
DELETE FROM full_before WHERE id = 60 AND s = 's60';
ALTER TABLE full_before ADD PRIMARY KEY (id);
ALTER TABLE full_before REPLICA IDENTITY DEFAULT;
ALTER TABLE by_index REPLICA IDENTITY FULL;
DROP INDEX by_index_id;
INSERT INTO by_index VALUES (60, 'another');
DELETE FROM by_index WHERE id = 60 AND s = 's60';
CREATE UNIQUE INDEX by_index_id ON by_index (id);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_id;
ALTER TABLE index_behind REPLICA IDENTITY FULL;
ALTER TABLE index_behind DROP CONSTRAINT index_behind_pkey;
INSERT INTO index_behind VALUES (60, 'another');
DELETE FROM index_behind WHERE id = 60 AND s = 's60';
CREATE UNIQUE INDEX index_behind_id ON index_behind (id);
ALTER TABLE index_behind REPLICA IDENTITY USING INDEX index_behind_id;
BEGIN;
UPDATE at_once SET s = 'u' || id WHERE id <= 10;
ALTER TABLE at_once REPLICA IDENTITY FULL;
ALTER TABLE at_once DROP CONSTRAINT at_once_pkey;
INSERT INTO at_once VALUES (60, 'another');
DELETE FROM at_once WHERE id = 60 AND s = 's60';
ALTER TABLE at_once ADD PRIMARY KEY (id);
ALTER TABLE at_once REPLICA IDENTITY DEFAULT;
COMMIT;
ALTER TABLE other_between REPLICA IDENTITY FULL;
ALTER TABLE other_between DROP CONSTRAINT other_between_pkey;
ALTER TABLE other_between ADD PRIMARY KEY (s);
INSERT INTO other_between VALUES (60, 'another');
DELETE FROM other_between WHERE id = 60 AND s = 's60';
ALTER TABLE other_between DROP CONSTRAINT other_between_pkey, ADD PRIMARY KEY (id);
ALTER TABLE root REPLICA IDENTITY FULL;
ALTER TABLE root_1 REPLICA IDENTITY FULL;
ALTER TABLE root DROP CONSTRAINT root_pkey;
INSERT INTO root VALUES (60, 'another');
DELETE FROM root WHERE id = 60 AND s = 's60';
ALTER TABLE root ADD PRIMARY KEY (id);
ALTER TABLE root_1 REPLICA IDENTITY DEFAULT;
ALTER TABLE root REPLICA IDENTITY DEFAULT;
UPDATE other_key SET s = 'u' || id WHERE id <= 10;
ALTER TABLE other_key DROP CONSTRAINT other_key_pkey, ADD PRIMARY KEY (s);
INSERT INTO other_key VALUES (60, 'another');
DELETE FROM other_key WHERE s = 's60';
ALTER TABLE other_key DROP CONSTRAINT other_key_pkey, ADD PRIMARY KEY (id);
UPDATE other_key SET s = 'v' || id WHERE id <= 3;
UPDATE nothing_between SET s = 'u' || id WHERE id <= 10;
ALTER TABLE nothing_between REPLICA IDENTITY NOTHING;
INSERT INTO nothing_between VALUES (101, 's101');
ALTER TABLE nothing_between REPLICA IDENTITY DEFAULT;
UPDATE nothing_between SET s = 'v' || id WHERE id <= 3;
ALTER TABLE index_and_back REPLICA IDENTITY USING INDEX index_and_back_s_key;
UPDATE index_and_back SET id = 160 WHERE id = 60;
ALTER TABLE index_and_back REPLICA IDENTITY DEFAULT;
UPDATE index_and_back SET s = 'v' || id WHERE id <= 3;
-- step: run
-- expect: marked full_behind (key was made anew)
-- expect: marked default_behind (key was made anew)
-- expect: marked full_before (key was made anew)
-- expect: marked by_index (key was made anew)
-- expect: marked index_behind (key was made anew)
-- expect: marked at_once (key was made anew)
-- expect: marked other_between (key was made anew)
-- expect: marked root (key was made anew)
-- expect: needs backfill other_key~3 (the key changed from "s" to "id")
-- expect: needs backfill nothing_between~3 (the key changed from none to "id")
-- expect: needs backfill index_and_back~3 (the key changed from "s" to "id")
-- step: backfill wanted
-- step: verify
