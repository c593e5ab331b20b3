-- While Spark is down batches are staged and not confirmed; when the slot retains too much, the next drain confirms up to
-- *staged* first. Nothing is lost: staging is durable.
-- bound: wal_valve_bytes = 100000

CREATE TABLE item (id int PRIMARY KEY, body text STORAGE EXTERNAL);
-- step: run
INSERT INTO item SELECT i, repeat('a', 4000) FROM generate_series(1, 100) i;
-- step: drain
-- step: confirm
-- expect: confirmed less than staged
UPDATE item SET body = 'b' WHERE id <= 10;
-- step: drain
-- expect: confirmed up to the batch before
UPDATE item SET body = 'c' WHERE id = 1;
-- step: run
-- expect: confirmed everything
