-- Masked columns never reach staging in clear, left-out columns never reach it at all.
-- capture: person
-- leave out: person.secret
-- mask: person.email sha256
-- mask: person.phone null

CREATE TABLE person (id int PRIMARY KEY, email text, phone text, secret text STORAGE EXTERNAL, name text);
-- step: run
INSERT INTO person VALUES (1, 'clear-email-1', 'clear-phone-1', repeat('clear-secret-1', 500), 'Ada'), (2, NULL, NULL, NULL, 'Ben');
INSERT INTO person VALUES (3, 'clear-email-1', 'clear-phone-2', 'clear-secret-2', 'Cy');
-- step: run
UPDATE person SET name = 'Bo' WHERE id = 2;
UPDATE person SET email = 'clear-email-2' WHERE id = 3;
-- step: run
-- expect: columns person (id, email, phone, name)
-- expect: current person (id, length(email), phone, name)
--   1 | 64 | ∅ | Ada
--   2 | ∅  | ∅ | Bo
--   3 | 64 | ∅ | Cy
-- expect: nowhere in the lake (clear-)
