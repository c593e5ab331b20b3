-- What was staged, what was applied of it, and who may write: the ledger of change capture.
-- Every LSN is a pg_lsn, every time a timestamptz. Tables of the source are named by their id ("schema.table",
-- percent-encoded).

CREATE TABLE tidemark.pipelines (
    pipeline    text PRIMARY KEY,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row per right to write, while somebody holds it. `attempt` is the fence: a write that does not find its own is
-- lost.
CREATE TABLE tidemark.leases (
    pipeline    text NOT NULL,
    name        text NOT NULL,
    holder      text NOT NULL,
    attempt     uuid NOT NULL,
    taken_at    timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (pipeline, name)
);

-- One life of the slot. The one with the highest number is open; `staged_lsn` is the end of its chain of batches (R4).
CREATE TABLE tidemark.generations (
    pipeline           text NOT NULL REFERENCES tidemark.pipelines,
    number             integer NOT NULL CHECK (number > 0),
    system_identifier  text NOT NULL,
    timeline           integer NOT NULL,
    slot               text NOT NULL,
    start_lsn          pg_lsn NOT NULL,
    staged_lsn         pg_lsn NOT NULL,
    confirmed_lsn      pg_lsn,                -- the slot's position as last read back after a confirmation
    heartbeat_lsn      pg_lsn,                -- end of the last heartbeat that a registered batch holds
    heartbeat_at       timestamptz,
    opened_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    opened_by          text NOT NULL,
    reason             text NOT NULL,
    error              jsonb,                 -- the error to be raised once: {"kind": leaf, "facts": {...}}
    error_raised_at    timestamptz,
    PRIMARY KEY (pipeline, number),
    CHECK (start_lsn <= staged_lsn)
);

-- One row per registered manifest; never changed. start_lsn of each is end_lsn of the one before.
CREATE TABLE tidemark.batches (
    pipeline           text NOT NULL,
    generation         integer NOT NULL,
    start_lsn          pg_lsn NOT NULL,
    end_lsn            pg_lsn NOT NULL,
    attempt            text NOT NULL,
    run_id             text NOT NULL,
    manifest           text NOT NULL,
    created_at         timestamptz NOT NULL,
    registered_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    changes            bigint NOT NULL,
    bytes              bigint NOT NULL,
    transaction_count  bigint NOT NULL,
    skipped_messages   bigint NOT NULL,
    heartbeat_lsn      pg_lsn,
    last_committed_at  timestamptz,
    PRIMARY KEY (pipeline, generation, end_lsn),
    UNIQUE (pipeline, generation, start_lsn),
    FOREIGN KEY (pipeline, generation) REFERENCES tidemark.generations (pipeline, number),
    CHECK (start_lsn < end_lsn)
);
CREATE INDEX batches_of_run ON tidemark.batches (pipeline, run_id);

-- The tables a batch touches: those for which it has files.
CREATE TABLE tidemark.batch_tables (
    pipeline    text NOT NULL,
    generation  integer NOT NULL,
    "table"     text NOT NULL,
    start_lsn   pg_lsn NOT NULL,
    end_lsn     pg_lsn NOT NULL,
    files       jsonb NOT NULL,
    counts      jsonb NOT NULL,
    converted   jsonb NOT NULL,
    unchanged   bigint NOT NULL,
    moved       bigint NOT NULL,
    changes     bigint NOT NULL,
    bytes       bigint NOT NULL,
    PRIMARY KEY (pipeline, generation, "table", end_lsn),
    FOREIGN KEY (pipeline, generation, end_lsn) REFERENCES tidemark.batches (pipeline, generation, end_lsn)
);

-- One row per table that was ever captured.
CREATE TABLE tidemark.tables (
    pipeline         text NOT NULL REFERENCES tidemark.pipelines,
    "table"          text NOT NULL,
    state            text NOT NULL DEFAULT 'merging' CHECK (state IN ('merging', 'deferred', 'parked')),
    state_since      timestamptz NOT NULL DEFAULT clock_timestamp(),
    captured         boolean NOT NULL DEFAULT true,
    join_horizon     bigint,                  -- xid8 of the source: a snapshot counts if its xmin is at or above it
    needs_backfill   boolean NOT NULL DEFAULT false,
    backfill_kind    text,
    backfill_reason  text,
    backfill_since   timestamptz,
    error            jsonb,                   -- {"kind", "move", "message"} of the last failure, NULL after a success
    error_at         timestamptz,
    failed_runs      integer NOT NULL DEFAULT 0,
    tried_at         timestamptz,
    notified_at      timestamptz,
    holes            jsonb NOT NULL DEFAULT '{}',
    fingerprint      jsonb,
    PRIMARY KEY (pipeline, "table"),
    CHECK (state <> 'parked' OR error IS NOT NULL),
    CHECK (needs_backfill = (backfill_reason IS NOT NULL))
);

CREATE TABLE tidemark.schema_versions (
    pipeline       text NOT NULL,
    "table"        text NOT NULL,
    version        integer NOT NULL,
    definition     jsonb NOT NULL,
    generation     integer NOT NULL,
    start_lsn      pg_lsn NOT NULL,           -- of the first batch whose files follow it
    PRIMARY KEY (pipeline, "table", version),
    FOREIGN KEY (pipeline, "table") REFERENCES tidemark.tables
);

-- What the two Delta tables were last seen to hold, as ingested from results; only ever rises.
CREATE TABLE tidemark.positions (
    pipeline     text NOT NULL,
    generation   integer NOT NULL,
    "table"      text NOT NULL,
    history_lsn  pg_lsn,
    current_lsn  pg_lsn,
    applied_lsn  pg_lsn GENERATED ALWAYS AS (
        CASE WHEN history_lsn IS NULL OR current_lsn IS NULL THEN NULL
             WHEN history_lsn < current_lsn THEN history_lsn
             ELSE current_lsn END
    ) STORED,
    risen_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, generation, "table")
);

-- What a plan may still have to apply: per table, the batches that end above its position.
CREATE VIEW tidemark.unapplied AS
SELECT b.*
  FROM tidemark.batch_tables b
  LEFT JOIN tidemark.positions p USING (pipeline, generation, "table")
 WHERE p.applied_lsn IS NULL OR b.end_lsn > p.applied_lsn;

-- One row per plan written; `result` is NULL until it is ingested.
CREATE TABLE tidemark.plans (
    pipeline     text NOT NULL REFERENCES tidemark.pipelines,
    plan         text NOT NULL,
    generation   integer NOT NULL,
    run_id       text NOT NULL,
    holder       text NOT NULL,
    path         text NOT NULL,
    tables       jsonb NOT NULL,              -- table id -> end LSN of the plan for it
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    result       jsonb,
    ingested_at  timestamptz,
    abandoned_at timestamptz,
    PRIMARY KEY (pipeline, plan)
);
CREATE INDEX plans_open ON tidemark.plans (pipeline, created_at) WHERE ingested_at IS NULL AND abandoned_at IS NULL;
