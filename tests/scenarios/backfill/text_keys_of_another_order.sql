-- Keys that the index orders otherwise than bytes: every row is read once, none is swept.
-- chunk rows: 3

CREATE FUNCTION shorter(text, text) RETURNS bool IMMUTABLE STRICT LANGUAGE sql AS 'SELECT (length($1), $1) < (length($2), $2)';
CREATE FUNCTION longer(text, text) RETURNS bool IMMUTABLE STRICT LANGUAGE sql AS 'SELECT (length($1), $1) > (length($2), $2)';
CREATE FUNCTION not_longer(text, text) RETURNS bool IMMUTABLE STRICT LANGUAGE sql AS 'SELECT (length($1), $1) <= (length($2), $2)';
CREATE FUNCTION not_shorter(text, text) RETURNS bool IMMUTABLE STRICT LANGUAGE sql AS 'SELECT (length($1), $1) >= (length($2), $2)';
CREATE OPERATOR <# (FUNCTION = shorter, LEFTARG = text, RIGHTARG = text);
CREATE OPERATOR ># (FUNCTION = longer, LEFTARG = text, RIGHTARG = text);
CREATE OPERATOR <=# (FUNCTION = not_longer, LEFTARG = text, RIGHTARG = text);
CREATE OPERATOR >=# (FUNCTION = not_shorter, LEFTARG = text, RIGHTARG = text);
CREATE FUNCTION by_length(text, text) RETURNS int IMMUTABLE STRICT LANGUAGE sql AS 'SELECT CASE WHEN (length($1), $1) < (length($2), $2) THEN -1 WHEN (length($1), $1) > (length($2), $2) THEN 1 ELSE 0 END';
CREATE OPERATOR CLASS by_length FOR TYPE text USING btree AS OPERATOR 1 <#, OPERATOR 2 <=#, OPERATOR 3 =, OPERATOR 4 >=#, OPERATOR 5 >#, FUNCTION 1 by_length(text, text);
CREATE TABLE word (word text NOT NULL, n int);
CREATE UNIQUE INDEX in_another_order ON word (word by_length);
ALTER TABLE word REPLICA IDENTITY USING INDEX in_another_order;
INSERT INTO word SELECT (ARRAY['a', 'B', 'ä', 'Zz', 'z-', 'é', '', 'ßßß'])[1 + i % 8] || i, i FROM generate_series(0, 39) AS i;
-- step: run
INSERT INTO word VALUES ('A', 100), ('b', 101), ('_____', 102);
-- step: run
-- step: plan
-- at: high word
UPDATE word SET word = word || '!' WHERE n % 7 = 0;
DELETE FROM word WHERE n % 11 = 0;
-- step: read
-- step: end backfill
-- expect: report word (swept=0)
-- step: run
-- step: backfill again
-- step: verify
