-- A run that finds nothing starts no Spark and still confirms.
-- alone

CREATE TABLE item (id int PRIMARY KEY);
-- step: run
INSERT INTO item VALUES (1);
-- step: run
-- step: run
-- expect: spark not started
-- expect: confirmed everything
-- step: run
-- expect: spark not started
-- expect: confirmed everything
