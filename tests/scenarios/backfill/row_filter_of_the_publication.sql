-- The publication's own row filter holds for chunks as it does for changes; the sweep removes what it left out.
-- alone

CREATE TABLE ticket (id int PRIMARY KEY, open bool, what text);
ALTER TABLE ticket REPLICA IDENTITY FULL;
INSERT INTO ticket SELECT i, i % 2 = 0, 'old' FROM generate_series(1, 6) AS i;
CREATE PUBLICATION tidemark_row_filter_of_the_publication FOR TABLE ticket WHERE (open) WITH (publish_via_partition_root);
-- step: run
INSERT INTO ticket VALUES (7, true, 'streamed'), (8, false, 'not streamed');
-- step: run
-- in the lake: INSERT INTO {current ticket} (id, open, what) VALUES (1, false, 'invented')
-- step: plan
-- at: high ticket
UPDATE ticket SET open = false WHERE id = 2;
UPDATE ticket SET open = true WHERE id = 3;
-- step: read
-- expect: filtered ticket
-- step: end backfill
-- expect: report ticket (read=4, inserted=2, overtaken=1, unchanged=1, swept=1)
-- expect: current ticket (id, what)
--   3 | old
--   4 | old
--   6 | old
--   7 | streamed
-- step: run
-- step: backfill again
-- step: verify
