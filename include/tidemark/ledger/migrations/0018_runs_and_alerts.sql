-- What each run did and how the pipeline stood at its end, for plots over hours and days; and what somebody was told.

-- One row per run of a DAG of the pipeline, kept for 90 days. A stage is written when it ends, the rest by `health`.
CREATE TABLE tidemark.runs (
    pipeline           text NOT NULL REFERENCES tidemark.pipelines,
    run_id             text NOT NULL,
    began_at           timestamptz NOT NULL,
    ended_at           timestamptz NOT NULL,
    stages             jsonb NOT NULL DEFAULT '{}',  -- stage -> {"s": seconds in all of its tries, "tries": n, "failed": bool}
    level_at           timestamptz,                  -- all that had committed by then was staged
    generation         integer,
    staged_lsn         pg_lsn,
    applied_lsn        pg_lsn,                       -- in every table that is merged
    confirmed_lsn      pg_lsn,
    source_lsn         pg_lsn,
    lag_bytes          bigint,                       -- between source and applied
    lag_s              double precision,
    retained_bytes     bigint,                       -- WAL that the source keeps for the slot, and where the slot is lost
    limit_bytes        bigint,
    batches            integer,                      -- registered by this run
    changes            bigint,
    unapplied_batches  bigint,
    unapplied_changes  bigint,
    verdict            text CHECK (verdict IN ('ok', 'warning', 'red')),
    tables             jsonb,                        -- state -> number of tables
    PRIMARY KEY (pipeline, run_id)
);
CREATE INDEX runs_by_time ON tidemark.runs (pipeline, began_at);
CREATE INDEX runs_level ON tidemark.runs (pipeline, level_at) WHERE level_at IS NOT NULL;

-- What was told and is not over. `subject` tells apart what is of one kind. A row goes when its end was told.
CREATE TABLE tidemark.alerts (
    pipeline   text NOT NULL REFERENCES tidemark.pipelines,
    kind       text NOT NULL,
    subject    text NOT NULL,
    line       text NOT NULL,
    told_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, kind, subject)
);
ALTER TABLE tidemark.tables DROP COLUMN notified_at;
ALTER TABLE tidemark.table_errors DROP COLUMN notified_at;

-- Values that did not fit are rare, and asked for by everybody who looks.
CREATE INDEX batch_tables_converted ON tidemark.batch_tables (pipeline, "table") WHERE converted <> '{}'::jsonb;
CREATE INDEX chunks_converted ON tidemark.chunks (pipeline, backfill) WHERE converted <> '{}'::jsonb;
