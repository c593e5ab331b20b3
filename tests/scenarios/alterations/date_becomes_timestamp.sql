-- A date becomes a timestamp: older ones mean midnight.
-- part: table
CREATE TABLE item (id int PRIMARY KEY, day date);
-- part: rows
INSERT INTO item SELECT n, '2026-01-01'::date + n FROM generate_series(1, 4) n;
-- part: before
UPDATE item SET day = '1999-12-31' WHERE id = 2;
-- part: alteration
ALTER TABLE item ALTER COLUMN day TYPE timestamp;
-- part: after
UPDATE item SET day = '2026-06-01 12:30:00.000001' WHERE id = 3;
-- outcome: needs backfill item (rewritten)
