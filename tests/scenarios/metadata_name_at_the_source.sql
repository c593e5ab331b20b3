-- A source column with the name of one of Tidemark's own columns is refused by name.
-- capture: item

CREATE TABLE item (id int PRIMARY KEY, _commit_lsn text);
-- step: run, refused (_commit_lsn)
