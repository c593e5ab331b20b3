-- One row per corner of every type: what arrives is the same value.

CREATE TYPE mood AS ENUM ('sad', 'ok', 'very happy');
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE DOMAIN short AS varchar(10);
CREATE TYPE pair AS (a int, b text);
CREATE TABLE plain (
  id bigint PRIMARY KEY, bool bool, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, oid oid,
  n0 numeric(5,0), n38 numeric(38,10), free numeric, big numeric(40,2), money money,
  txt text, vc varchar(10), bc char(4), nm name, chr "char", e mood, dp positive, ds short,
  by bytea, u uuid, ip inet, net cidr, mac macaddr, bits bit(3), vbits varbit,
  d date, t timestamp, z timestamptz, ti time, tz timetz, iv interval,
  j json, jb jsonb, x xml, pt point, p pair, r int4range, mr int4multirange, ts tsvector, lsn pg_lsn);
CREATE TABLE lists (
  id int PRIMARY KEY, i4 int[], i8 bigint[], b bool[], f float8[], n numeric(6,2)[], free numeric[], t text[], v varchar(5)[],
  d date[], z timestamptz[], u uuid[], e mood[], by bytea[], j jsonb[]);
-- step: run
INSERT INTO plain VALUES
 (1, true, -32768, -2147483648, -9223372036854775808, -1.5, 1e308, 4294967295,
  99999, 1234567890123456789012345678.0123456789, 1.10, 12345678901234567890123456789012345678.12, 1234.5,
  'text', 'vc', 'bc', 'nm', 'c', 'very happy', 1, 'short',
  '\xdeadbeef', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '10.0.0.1', '10.0.0.0/8', '08:00:2b:01:02:03', B'101', B'10101',
  '2024-02-29', '2024-02-29 12:34:56.789012', '2024-02-29 12:34:56.789012+05', '24:00:00', '12:00:00.5+05:30', '1 mon 2 days 03:04:05.6',
  '{"a": 1.10,  "a": 2}', '{"n": 1e40, "long": 12345678901234567890}', NULL, '(1.5,2)', ROW(1, 'x,"y'), '[1,5)', '{[1,3),[5,7)}', 'a b:2', '16/B374D848'),
 (2, false, 32767, 2147483647, 9223372036854775807, 3.4e38, 5e-324, 0,
  -99999, -0.0000000001, -1e-20, 0, -0.01,
  '', '', '', '', '', 'sad', 2147483647, '',
  '', '00000000-0000-0000-0000-000000000000', '::1/64', '::/0', 'ff:ff:ff:ff:ff:ff', B'000', B'',
  '0001-01-01', '0001-01-01 00:00:00', '9999-12-31 23:59:59.999999+00', '00:00:00', '00:00:00-15:59', '-1 year',
  'null', '[]', NULL, '(0,0)', NULL, 'empty', '{}', '', '0/0');
INSERT INTO plain (id) VALUES (3);
INSERT INTO plain (id, f4, f8, z, iv, bc) VALUES (4, 'NaN', '-0', '1883-11-18 12:03:58-07:56:02', '2147483647 days', 'ä');
INSERT INTO lists VALUES
 (1, '{1,NULL,-3}', '{9223372036854775807}', '{t,f,NULL}', '{NaN,-Infinity,0.1}', '{1.10,-9999.99}', '{1.10,1e50}',
  '{"a,b","c\"d","e\\f",NULL,"NULL",""," g "}', '{x}', '{2024-01-01}', '{"2024-01-01 00:00:00+00"}',
  '{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}', '{"very happy",sad}', '{"\\x00ff"}', '{"{\"a\": 1}"}'),
 (2, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}'),
 (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
-- step: run
UPDATE plain SET txt = 'changed' WHERE id = 1;
UPDATE lists SET i4 = i4 || 4;
-- step: run
