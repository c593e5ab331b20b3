-- What foreign keys and triggers do is in the stream like any other change.

CREATE TABLE parent (id int PRIMARY KEY, name text);
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE audit (n int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what text);
CREATE FUNCTION note_it() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO audit (what) VALUES (TG_OP || ' ' || TG_TABLE_NAME); RETURN NULL; END $$;
CREATE TRIGGER note_it AFTER INSERT OR UPDATE OR DELETE ON parent FOR EACH ROW EXECUTE FUNCTION note_it();
-- step: run
INSERT INTO parent VALUES (1, 'a'), (2, 'b');
INSERT INTO child VALUES (10, 1), (11, 1), (12, 2);
UPDATE parent SET id = 3 WHERE id = 1;
DELETE FROM parent WHERE id = 2;
-- step: run
-- expect: current child (id, parent)
--   10 | 3
--   11 | 3
-- expect: current audit (n, what)
--   1 | INSERT parent
--   2 | INSERT parent
--   3 | UPDATE parent
--   4 | DELETE parent
