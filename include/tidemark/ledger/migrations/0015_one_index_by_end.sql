-- Without statistics a batch was looked up by its end in the index by start, among all of its generation: for each row
-- of batch_tables that referred to it. Turned round, that index fits no such question. The view looks positions up one
-- by one for the same reason.

ALTER TABLE tidemark.batches
    DROP CONSTRAINT batches_pipeline_generation_start_lsn_key,
    ADD CONSTRAINT batches_start_once UNIQUE (start_lsn, generation, pipeline);

CREATE OR REPLACE VIEW tidemark.unapplied AS
SELECT g.pipeline, g.number AS generation, t."table", b.start_lsn, b.end_lsn, b.files, b.counts, b.converted,
       b.unchanged, b.moved, b.changes, b.bytes, b.max_xid, b.claims, b.sweeps
  FROM tidemark.generations g
  JOIN tidemark.tables t ON t.pipeline = g.pipeline
 CROSS JOIN LATERAL (
       SELECT * FROM tidemark.batch_tables x
        WHERE x.pipeline = g.pipeline AND x.generation = g.number AND x."table" = t."table"
          AND x.end_lsn > coalesce((SELECT p.applied_lsn FROM tidemark.positions p
                                     WHERE p.pipeline = g.pipeline AND p.generation = g.number
                                       AND p."table" = t."table"), '0/0')
        ORDER BY x.end_lsn OFFSET 0) b;
