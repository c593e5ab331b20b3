-- What the golden streams record. Blocks are separated by an empty line; each is one transaction, unless it says otherwise.

CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE TABLE item (id int PRIMARY KEY, name text, price numeric(10,2), changed timestamptz, feeling mood, amount positive,
                   lists int[], raw bytea, twice int GENERATED ALWAYS AS (id * 2) STORED);
CREATE TABLE pair (b text, a int, value text, PRIMARY KEY (a, b));
CREATE TABLE document (id int PRIMARY KEY, title text, body text, extra text);
ALTER TABLE document ALTER body SET STORAGE EXTERNAL, ALTER extra SET STORAGE EXTERNAL;
CREATE TABLE long_key (code text PRIMARY KEY, value int);
ALTER TABLE long_key ALTER code SET STORAGE EXTERNAL;
CREATE TABLE full_document (id int PRIMARY KEY, title text, body text);
ALTER TABLE full_document ALTER body SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL, value text);
CREATE UNIQUE INDEX by_index_code ON by_index (code);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_code;
CREATE TABLE bag (a int, b text);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE log (a int, b text);
CREATE TABLE other (id int PRIMARY KEY, value text);
CREATE TABLE measure (id int, at date, value float8, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE measure_old PARTITION OF measure FOR VALUES FROM ('2000-01-01') TO ('2020-01-01');
CREATE TABLE measure_new PARTITION OF measure FOR VALUES FROM ('2020-01-01') TO ('2040-01-01');
CREATE TABLE filtered (id int PRIMARY KEY, open bool, value text, hidden text);
ALTER TABLE filtered REPLICA IDENTITY FULL;
CREATE TABLE "Straße ""9""" ("Größe" int PRIMARY KEY, "a.b" text);
CREATE PUBLICATION golden FOR TABLE item, pair, document, long_key, full_document, by_index, bag, log, other, measure,
  filtered WHERE (open), "Straße ""9""" WITH (publish_via_partition_root);

INSERT INTO item VALUES (1, 'one', 1.10, '2024-01-02 03:04:05.678901+00', 'ok', 7, '{1,NULL}', '\x00ff'),
  (2, '', NULL, 'infinity', 'sad', NULL, '{}', ''), (3, NULL, -0.01, '0044-03-15 00:00:00+00 BC', NULL, NULL, NULL, NULL);

UPDATE item SET name = 'two' WHERE id = 2;
INSERT INTO other VALUES (1, 'not captured'), (2, 'x');
UPDATE item SET id = 30 WHERE id = 3;
UPDATE other SET value = 'y' WHERE id = 2;
DELETE FROM item WHERE id = 1;
INSERT INTO item (id, name) VALUES (1, 'again');

INSERT INTO pair VALUES ('x', 1, 'first'), ('y', 1, 'second'), ('x', 2, 'third');
UPDATE pair SET b = 'z' WHERE a = 1 AND b = 'y';
UPDATE pair SET a = 3, b = 'q' WHERE a = 2;
UPDATE pair SET value = 'still there' WHERE a = 1 AND b = 'x';
DELETE FROM pair WHERE a = 3;

INSERT INTO document VALUES (1, 'one', repeat('body ', 500), repeat('extra ', 400)), (2, 'two', repeat('b', 2100), NULL);

UPDATE document SET title = 'uno' WHERE id = 1;
UPDATE document SET extra = 'short' WHERE id = 1;
UPDATE document SET id = 20 WHERE id = 2;
UPDATE document SET body = NULL WHERE id = 20;

INSERT INTO long_key VALUES (repeat('k', 2200), 1);
UPDATE long_key SET value = 2;
UPDATE long_key SET code = 'short';
DELETE FROM long_key;

INSERT INTO full_document VALUES (1, 'one', repeat('full ', 450)), (2, 'two', NULL);
UPDATE full_document SET title = 'uno' WHERE id = 1;
UPDATE full_document SET id = 10 WHERE id = 1;
UPDATE full_document SET title = NULL WHERE id = 2;
DELETE FROM full_document WHERE id = 2;

INSERT INTO by_index VALUES (1, 'a', 'x'), (2, 'b', 'y');
UPDATE by_index SET id = 10 WHERE code = 'a';
UPDATE by_index SET code = 'c' WHERE code = 'b';
DELETE FROM by_index WHERE code = 'a';

INSERT INTO bag VALUES (1, 'a'), (1, 'a'), (NULL, NULL);
UPDATE bag SET b = 'b' WHERE ctid = (SELECT min(ctid) FROM bag);
DELETE FROM bag WHERE a IS NULL;

INSERT INTO log VALUES (1, 'a'), (1, 'a');

INSERT INTO measure VALUES (1, '2010-01-01', 0.1), (2, '2030-01-01', 'NaN');
UPDATE measure SET at = '2031-01-01' WHERE id = 1;
UPDATE measure SET value = '-0' WHERE id = 2;

INSERT INTO filtered VALUES (1, true, 'in', 'h'), (2, false, 'out', 'h');
UPDATE filtered SET open = true WHERE id = 2;
UPDATE filtered SET open = false WHERE id = 1;

INSERT INTO "Straße ""9""" VALUES (1, 'é'), (2, E'line\nend');

SELECT pg_logical_emit_message(true, 'tidemark', 'first'), pg_logical_emit_message(false, 'aside', 'now');
INSERT INTO log VALUES (2, 'b');
SELECT pg_logical_emit_message(true, 'other', '\x00ff'::bytea);

SELECT pg_logical_emit_message(false, 'aside', 'alone');

INSERT INTO item (id, name) VALUES (50, 'before');
ALTER TABLE item ADD COLUMN added text;
INSERT INTO item (id, name, added) VALUES (51, 'after', 'new');
UPDATE item SET added = 'filled' WHERE id = 50;
ALTER TABLE item ALTER COLUMN amount TYPE bigint;
INSERT INTO item (id, amount) VALUES (52, 12345678901);

INSERT INTO item (id) VALUES (60);
SAVEPOINT undone;
INSERT INTO item (id) VALUES (61);
ROLLBACK TO undone;
INSERT INTO item (id) VALUES (62);

INSERT INTO pair VALUES ('gone', 9, NULL);
TRUNCATE pair, bag, other;
INSERT INTO pair VALUES ('new', 9, 'kept');
INSERT INTO bag VALUES (5, 'five');

TRUNCATE log RESTART IDENTITY CASCADE;
