-- A pattern takes tables that can be published: no views, no unlogged tables, no sequences.

CREATE TABLE item (id serial PRIMARY KEY, name text);
CREATE VIEW all_items AS SELECT * FROM item;
CREATE MATERIALIZED VIEW kept_items AS SELECT * FROM item;
CREATE UNLOGGED TABLE scratch (id int PRIMARY KEY);
-- step: run
INSERT INTO item (name) VALUES ('a');
INSERT INTO scratch VALUES (1);
-- step: run
-- expect: tables item
