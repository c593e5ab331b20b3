-- A mask follows its column: renamed at the source it reaches no file in clear. What was hashed is NULL from there on, and the table
-- says so, until the file names the column.
-- capture: person
-- mask: person.email sha256

CREATE TABLE person (id int PRIMARY KEY, email text, name text);
-- step: run
INSERT INTO person VALUES (1, 'clear-email-1', 'Ada');
-- step: run
ALTER TABLE person RENAME COLUMN email TO address;
INSERT INTO person VALUES (2, 'clear-email-2', 'Ben');
UPDATE person SET address = 'clear-email-3' WHERE id = 1;
-- step: run
-- expect: needs backfill person (column "email".*sha256.*"address")
-- expect: columns person (id, address, name)
-- expect: current person (id, address, name)
--   1 | ∅ | Ada
--   2 | ∅ | Ben
-- expect: nowhere in the lake (clear-)
