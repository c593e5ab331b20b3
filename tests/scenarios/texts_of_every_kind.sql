-- Empty is not NULL; quotes, tabs, line ends, backslashes and every plane of Unicode arrive as they are.

CREATE TABLE txt (id int PRIMARY KEY, t text, c char(5), v varchar(20), b bytea);
-- step: run
INSERT INTO txt VALUES (1, '', '', '', ''), (2, NULL, NULL, NULL, NULL),
  (3, E'a\tb\nc\\d\r\n''"', 'ab', E'\\N', '\x00ff5c'), (4, E'𝄞 ∅ é e\u0301', 'ä', '{"a":[1]}', '\x');
UPDATE txt SET t = t || '…' WHERE id = 3;
-- step: run
