-- A transaction that was open when its table joined the publication is in no stream as a whole: the chunk waits for it.

CREATE TABLE before (id int PRIMARY KEY);
-- step: run
CREATE TABLE joins (id int PRIMARY KEY, what text);
INSERT INTO joins VALUES (1, 'old'), (2, 'old'), (3, 'old');
-- session: a
BEGIN;
INSERT INTO joins VALUES (4, 'before the join');
UPDATE joins SET what = 'before the join' WHERE id = 1;
-- step: run
-- expect: needs backfill joins (had rows|still open)
-- session: a
INSERT INTO joins VALUES (5, 'behind the join');
UPDATE joins SET what = 'behind the join' WHERE id = 2;
-- at: horizon
-- session: a
COMMIT;
-- step: plan
-- step: read
-- step: end backfill
-- expect: merging joins
-- step: run
-- step: backfill again
-- step: verify
