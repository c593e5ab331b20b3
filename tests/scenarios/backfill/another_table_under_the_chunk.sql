-- A chunk is not the base of a table that has become another one since: it is rejected, and read again.
-- The default is volatile, as far as PostgreSQL can tell, so every row was written anew.
-- alone

CREATE TABLE item (id int PRIMARY KEY, what text);
INSERT INTO item VALUES (1, 'old'), (2, 'old');
-- step: run
-- step: run
-- step: plan
-- step: read
ALTER TABLE item ADD COLUMN since text DEFAULT 'always' || left(random()::text, 0);
INSERT INTO item VALUES (3, 'new');
-- step: end backfill
-- expect: backfill open item (was rewritten)
-- step: read
-- step: end backfill
-- expect: report item (read=3, inserted=2, unchanged=1)
-- expect: needs backfill item (was rewritten)
-- expect: current item (id, what, since)
--   1 | old | always
--   2 | old | always
--   3 | new | always
-- step: run

-- The mark is younger than the backfill, so it stays for another one.
-- step: backfill wanted
-- expect: merging item
-- step: backfill again
-- step: verify
