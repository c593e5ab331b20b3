-- A label of an enum is renamed in which the key is, and a change brings the row under its new key: the backfill that this
-- asks for removes the row under the old one.
-- alone

CREATE TYPE mood AS ENUM ('sad', 'glad', 'calm');
CREATE TABLE note (mood mood PRIMARY KEY, size int);
INSERT INTO note VALUES ('sad', 1), ('glad', 2);
-- step: run
-- expect: needs backfill note (had rows before it was captured)
-- step: plan
-- step: read
-- step: end backfill
ALTER TYPE mood RENAME VALUE 'sad' TO 'blue';
UPDATE note SET size = 7 WHERE mood = 'blue';
-- step: run
-- expect: needs backfill note (older rows read as something else)
-- step: backfill wanted
-- expect: current note (mood, size)
--   blue | 7
--   glad | 2
