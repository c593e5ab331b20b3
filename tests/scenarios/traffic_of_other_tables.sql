-- Transactions of tables outside the pipeline, empty ones and messages of other prefixes move the positions, nothing else.
-- capture: mine
-- alone

CREATE TABLE mine (id int PRIMARY KEY);
CREATE TABLE other (id int PRIMARY KEY, what text);
-- step: run
INSERT INTO mine VALUES (1);
-- step: run
INSERT INTO other SELECT i, 'x' FROM generate_series(1, 500) i;
SELECT pg_logical_emit_message(true, 'somebody else', 'hello');
SELECT pg_logical_emit_message(false, 'somebody else', 'hello');
CREATE TABLE unrelated (id int);
BEGIN;
COMMIT;
-- step: run
-- expect: spark not started
-- expect: confirmed everything
-- expect: tables mine
