-- A table that was out of the publication for a while has missed changes; a backfill makes up for all of them.
-- alone

CREATE TABLE item (id int PRIMARY KEY, what text, body text STORAGE EXTERNAL);
-- step: run
INSERT INTO item SELECT i, 'old', repeat('o', 5000) FROM generate_series(1, 6) AS i;
-- step: run
-- expect: merging item
ALTER PUBLICATION tidemark_out_of_the_publication_and_back DROP TABLE item;
UPDATE item SET what = 'missed', body = repeat('m', 5000) WHERE id = 1;
DELETE FROM item WHERE id = 2;
INSERT INTO item VALUES (7, 'missed', 'm');
UPDATE item SET id = 8 WHERE id = 3;
-- step: run
-- expect: needs backfill item (out of the publication)
UPDATE item SET what = 'streamed' WHERE id IN (1, 4, 8);
-- step: drain
-- step: plan
-- step: read
-- step: end backfill
-- expect: merging item
-- expect: report item (read=6, swept=2)
-- step: run
-- step: backfill again
-- step: verify
