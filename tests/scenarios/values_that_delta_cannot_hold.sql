-- Infinity, NaN and years outside 0001–9999: clamped or NULL in `current`, PostgreSQL's own text in `history`, counted.

CREATE TABLE odd (id int PRIMARY KEY, d date, t timestamp, z timestamptz, n numeric(10,2), f float8, free numeric);
-- step: run
INSERT INTO odd VALUES
  (1, 'infinity', 'infinity', 'infinity', 'NaN', 'NaN', 'NaN'),
  (2, '-infinity', '-infinity', '-infinity', NULL, '-Infinity', 'Infinity'),
  (3, '0044-03-15 BC', '0044-03-15 12:00:00 BC', '12000-01-01 00:00:00+00', 1.5, 'Infinity', 1e100),
  (4, '2024-02-29', '2024-02-29 23:59:59.999999', '1900-01-01 00:00:00.000001+00', -99999999.99, 1e-300, 0.10);
-- step: run
-- expect: current odd (id, d, t, z, n, f, left(free, 8))
--   1 | 9999-12-31 | 9999-12-31 23:59:59.999999 | 9999-12-31 23:59:59.999999 | ∅            | nan    | NaN
--   2 | 0001-01-01 | 0001-01-01 00:00:00        | 0001-01-01 00:00:00        | ∅            | -inf   | Infinity
--   3 | 0001-01-01 | 0001-01-01 00:00:00        | 9999-12-31 23:59:59.999999 | 1.50         | inf    | 10000000
--   4 | 2024-02-29 | 2024-02-29 23:59:59.999999 | 1900-01-01 00:00:00.000001 | -99999999.99 | 1e-300 | 0.10
-- expect: history odd (id, _text['d'], _text['t'], _text['z'], _text['n'], _text['f'])
--   1 | infinity      | infinity               | infinity                | NaN | ∅
--   2 | -infinity     | -infinity              | -infinity               | ∅   | ∅
--   3 | 0044-03-15 BC | 0044-03-15 12:00:00 BC | 12000-01-01 00:00:00+00 | ∅   | ∅
--   4 | ∅             | ∅                      | ∅                       | ∅   | ∅
-- expect: converted odd (d=3, n=1, t=3, z=3)
UPDATE odd SET d = '2020-01-01', n = 1 WHERE id = 1;
DELETE FROM odd WHERE id = 2;
-- step: run
