-- How often anything asked for a backfill of the table, and how often it had when a backfill was opened: a clock that
-- steps back, as where another server takes over the ledger, cannot put a mark before the backfill that it came after.

ALTER TABLE tidemark.tables ADD COLUMN marks bigint NOT NULL DEFAULT 0;
ALTER TABLE tidemark.backfills ADD COLUMN marks bigint NOT NULL DEFAULT 0;

UPDATE tidemark.tables SET marks = 1 WHERE marked_at IS NOT NULL;
UPDATE tidemark.backfills b SET marks = 1
  FROM tidemark.tables t
 WHERE t.pipeline = b.pipeline AND t."table" = b."table" AND t.marked_at <= b.opened_at;

ALTER TABLE tidemark.tables DROP COLUMN marked_at;
