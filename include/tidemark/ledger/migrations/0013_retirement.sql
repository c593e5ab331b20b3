-- What may go of staging, and what went. Retired: applied, and evidence of nothing any more; its files go, then its row,
-- but the newest retired row of each table and generation, which says where the table's next plan begins.

ALTER TABLE tidemark.batches
    ADD COLUMN retired_at  timestamptz,
    ADD COLUMN removed_at  timestamptz;       -- its folder is gone

-- A batch is retired table by table: one that keeps its own files does not keep those of the others.
ALTER TABLE tidemark.batch_tables
    ADD COLUMN retired_at  timestamptz,
    ADD COLUMN removed_at  timestamptz;

CREATE INDEX batches_to_remove ON tidemark.batches (pipeline, generation, end_lsn)
 WHERE retired_at IS NOT NULL AND removed_at IS NULL;
CREATE INDEX batch_tables_to_remove ON tidemark.batch_tables (pipeline, generation, end_lsn)
 WHERE retired_at IS NOT NULL AND removed_at IS NULL;
CREATE INDEX batch_tables_removed ON tidemark.batch_tables (pipeline, generation, "table", end_lsn)
 WHERE removed_at IS NOT NULL;

-- Everything below `retired_lsn` is retired, but for what single tables keep; `retired_xid` is the highest transaction
-- id of it: a snapshot whose xmin is not above it can be no backfill's.
ALTER TABLE tidemark.generations
    ADD COLUMN retired_lsn  pg_lsn,
    ADD COLUMN retired_xid  bigint;

ALTER TABLE tidemark.backfills ADD COLUMN removed_at timestamptz;

-- The last maintenance of each pipeline.
CREATE TABLE tidemark.maintenance (
    pipeline    text PRIMARY KEY REFERENCES tidemark.pipelines,
    ended_at    timestamptz NOT NULL,
    retired     jsonb,                        -- what was removed of staging and ledger
    tables      jsonb                         -- table -> what was done to its Delta tables
);
