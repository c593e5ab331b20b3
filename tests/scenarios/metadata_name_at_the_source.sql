-- A table with a column of one of Tidemark's own names, or of one that Hadoop replaces, or two that Spark does not tell
-- apart, is left out; the others go on.

CREATE TABLE item (id int PRIMARY KEY, name text);
CREATE TABLE of_history (id int PRIMARY KEY, _commit_lsn text);
CREATE TABLE of_files (id int PRIMARY KEY, _metadata text);
CREATE TABLE of_properties (id int PRIMARY KEY, "${user.name}" text);
CREATE TABLE in_two_cases (id int PRIMARY KEY, "Colour" text, colour text);
CREATE TABLE in_javas_case (id int PRIMARY KEY, s text, "ſ" text);
-- step: run
INSERT INTO item VALUES (1, 'a');
INSERT INTO of_history VALUES (1, 'a');
INSERT INTO of_files VALUES (1, 'a');
INSERT INTO of_properties VALUES (1, 'a');
INSERT INTO in_two_cases VALUES (1, 'a', 'b');
INSERT INTO in_javas_case VALUES (1, 'a', 'b');
-- step: run
-- expect: tables item
