-- Table and column names with dots, blanks, quotes, capitals and letters of every alphabet stay what they are.

CREATE TABLE "Order.Line" ("Id" int PRIMARY KEY, "a b" text, "c.d" int, "straße" text, "say ""hi""" text, "tick`s" text, "select" int);
CREATE TABLE "наименование" ("ключ" text PRIMARY KEY, "значение" int);
CREATE TABLE "with space/slash%" (id int PRIMARY KEY);
CREATE TABLE _delta_log (id int PRIMARY KEY, name text);
CREATE TABLE dotted ("." int, ".." text, "a.b" text, PRIMARY KEY (".", "a.b"));
-- step: run
CREATE TABLE "later=1" (id int PRIMARY KEY);
INSERT INTO _delta_log VALUES (1, 'a');
INSERT INTO dotted VALUES (1, 'x', 'y'), (2, 'x', 'y'), (3, 'x', 'y');
INSERT INTO "Order.Line" VALUES (1, 'x', 2, 'y', 'z', 't', 3), (2, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO "наименование" VALUES ('ä', 1), ('日本', 2);
INSERT INTO "with space/slash%" VALUES (1);
-- step: run
UPDATE _delta_log SET name = 'b';
UPDATE dotted SET "." = 10 WHERE "." = 1;
UPDATE dotted SET "a.b" = 'z' WHERE "." = 2;
DELETE FROM dotted WHERE "." = 3;
UPDATE "Order.Line" SET "c.d" = 5 WHERE "Id" = 1;
UPDATE "наименование" SET "ключ" = 'ö' WHERE "ключ" = 'ä';
DELETE FROM "with space/slash%";
INSERT INTO "later=1" VALUES (1);
-- step: run
