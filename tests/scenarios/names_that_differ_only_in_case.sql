-- Delta's column names do not know case: two columns whose names differ only there are refused, with both names.
-- capture: item

CREATE TABLE item (id int PRIMARY KEY, "Colour" text, colour text);
-- step: run, refused (Colour.*colour|colour.*Colour)
