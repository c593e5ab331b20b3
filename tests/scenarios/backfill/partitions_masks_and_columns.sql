-- Chunks take what the stream takes: partitions through their root, masked values, no left-out column.
-- capture: part, person
-- leave out: person.secret
-- mask: person.email sha256
-- mask: person.phone null

CREATE TABLE part (region text, id int, what text, PRIMARY KEY (region, id)) PARTITION BY LIST (region);
CREATE TABLE part_north PARTITION OF part FOR VALUES IN ('north');
CREATE TABLE part_south PARTITION OF part FOR VALUES IN ('south');
INSERT INTO part VALUES ('north', 1, 'old'), ('north', 2, 'old'), ('south', 1, 'old'), ('south', 2, 'old');
CREATE TABLE person (id int PRIMARY KEY, email text, phone text, secret text STORAGE EXTERNAL, name text);
INSERT INTO person VALUES (1, 'clear-email-1', 'clear-phone-1', repeat('clear-secret-1', 500), 'Ada'), (2, NULL, NULL, NULL, 'Ben');
-- step: run
INSERT INTO person VALUES (3, 'clear-email-1', 'clear-phone-2', 'clear-secret-2', 'Cy');
-- step: run
-- step: plan
-- at: high part
UPDATE part SET region = 'south', id = 3 WHERE region = 'north' AND id = 1;
DELETE FROM part WHERE region = 'south' AND id = 2;
-- step: read
UPDATE person SET name = 'Bo' WHERE id = 2;
-- step: end backfill
-- expect: report person (read=3, inserted=2, unchanged=1, swept=0)
-- expect: current person (id, length(email), phone, name)
--   1 | 64 | ∅ | Ada
--   2 | ∅  | ∅ | Bo
--   3 | 64 | ∅ | Cy
-- expect: nowhere in the lake (clear-)
-- step: run
-- step: backfill again
-- step: verify
