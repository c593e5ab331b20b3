-- Under a publication FOR ALL TABLES a table whose key has a generated column that is not published is not captured, and
-- keeps nobody from the backfill of the others.
-- alone
CREATE PUBLICATION tidemark_key_with_a_generated_column FOR ALL TABLES WITH (publish_via_partition_root);
CREATE TABLE note (id int PRIMARY KEY, what text);
INSERT INTO note VALUES (1, 'a'), (2, 'b');
CREATE TABLE halves (a int, b int GENERATED ALWAYS AS (a / 2) STORED, PRIMARY KEY (a, b));
INSERT INTO halves VALUES (1), (5);

-- step: run
-- expect: tables note
-- step: plan
-- step: read
-- step: end backfill
-- expect: report note (read=2)

INSERT INTO halves VALUES (9);
INSERT INTO note VALUES (3, 'c');
-- step: run
-- expect: tables note
-- expect: current note (id, what)
--   1 | a
--   2 | b
--   3 | c
