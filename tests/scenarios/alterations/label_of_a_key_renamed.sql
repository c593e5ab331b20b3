-- A label of an enum is renamed in which the key is: older rows have another key, of which the stream says nothing.
-- no chunk: the position of the reader is a label that is gone
-- part: table
CREATE TYPE mood AS ENUM ('sad', 'glad', 'calm');
CREATE TABLE item (mood mood PRIMARY KEY, size int);
-- part: rows
INSERT INTO item VALUES ('sad', 1), ('glad', 2), ('calm', 3);
-- part: before
UPDATE item SET size = 9 WHERE mood = 'glad';
-- part: alteration
ALTER TYPE mood RENAME VALUE 'sad' TO 'blue';
-- part: after
UPDATE item SET size = 7 WHERE mood = 'blue';
DELETE FROM item WHERE mood = 'calm';
-- outcome: needs backfill item (older rows read as something else)
