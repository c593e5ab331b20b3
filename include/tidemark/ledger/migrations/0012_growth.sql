-- What a run asks the ledger costs what is new, not what ever happened, with or without statistics. For each table the
-- view starts behind what is applied: OFFSET 0 keeps the planner from reading all batches once for all tables.

DROP VIEW tidemark.unapplied;
CREATE VIEW tidemark.unapplied AS
SELECT g.pipeline, g.number AS generation, t."table", b.start_lsn, b.end_lsn, b.files, b.counts, b.converted,
       b.unchanged, b.moved, b.changes, b.bytes, b.max_xid, b.claims, b.sweeps
  FROM tidemark.generations g
  JOIN tidemark.tables t ON t.pipeline = g.pipeline
  LEFT JOIN tidemark.positions p
         ON p.pipeline = g.pipeline AND p.generation = g.number AND p."table" = t."table"
 CROSS JOIN LATERAL (
       SELECT * FROM tidemark.batch_tables x
        WHERE x.pipeline = g.pipeline AND x.generation = g.number AND x."table" = t."table"
          AND x.end_lsn > coalesce(p.applied_lsn, '0/0')
        ORDER BY x.end_lsn OFFSET 0) b;

-- Evidence is asked for by transaction id, and by backfill.
CREATE INDEX batch_tables_by_xid ON tidemark.batch_tables (pipeline, generation, "table", max_xid)
 WHERE max_xid IS NOT NULL;
CREATE INDEX batch_tables_claiming ON tidemark.batch_tables (pipeline, generation, "table", end_lsn)
 WHERE claims <> '[]';

-- How many batches were registered, when the last one was, and the newest commit in them.
ALTER TABLE tidemark.generations
    ADD COLUMN batches            bigint NOT NULL DEFAULT 0,
    ADD COLUMN registered_at      timestamptz,
    ADD COLUMN last_committed_at  timestamptz;

UPDATE tidemark.generations g
   SET batches = b.batches, registered_at = b.registered_at, last_committed_at = b.last_committed_at
  FROM (SELECT pipeline, generation, count(*) AS batches, max(registered_at) AS registered_at,
               max(last_committed_at) AS last_committed_at
          FROM tidemark.batches GROUP BY pipeline, generation) b
 WHERE (b.pipeline, b.generation) = (g.pipeline, g.number);
