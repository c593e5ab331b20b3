-- The ledger: what was staged, what was applied of it, and who may write.
-- Every LSN is a pg_lsn, every time a timestamptz. "table" is a table's id ("schema.table", percent-encoded).
-- Keys of the source's tables are arrays of PostgreSQL's texts. docs/formats.md describes every table for its readers.

CREATE TABLE tidemark.pipelines (
    pipeline    text PRIMARY KEY,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The pipeline file's statements about slot, publication, tables and columns, as a digest: the one that holds, and
-- those that held before. Preflight records it. Whoever has another file waits.
CREATE TABLE tidemark.pipeline_files (
    pipeline       text NOT NULL REFERENCES tidemark.pipelines,
    digest         text NOT NULL,
    columns        text NOT NULL,             -- digest of the statements about columns alone
    noted_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    superseded_at  timestamptz,
    PRIMARY KEY (pipeline, digest)
);
CREATE UNIQUE INDEX pipeline_files_one_holds ON tidemark.pipeline_files (pipeline) WHERE superseded_at IS NULL;

-- One row per right to write, while somebody holds it. `attempt` is the fence: a write that does not find its own
-- attempt here is lost.
CREATE TABLE tidemark.leases (
    pipeline    text NOT NULL,
    name        text NOT NULL,
    holder      text NOT NULL,
    attempt     uuid NOT NULL,
    taken_at    timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (pipeline, name)
);

-- Who waits for a lease; whoever holds it for long looks here, and lets it go. A row says nothing after `expires_at`.
CREATE TABLE tidemark.lease_waits (
    pipeline    text NOT NULL,
    name        text NOT NULL,
    holder      text NOT NULL,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (pipeline, name, holder)
);

-- The run that follows the source. A later run takes its place once it is ready.
CREATE TABLE tidemark.followers (
    pipeline  text PRIMARY KEY REFERENCES tidemark.pipelines,
    run_id    text NOT NULL,
    began_at  timestamptz NOT NULL
);

-- Slots and publications of the source that the pipeline made or was given by hand. The row is written before the
-- object is made, so a pipeline recognises what it made before it died. What is neither here nor in `generations`
-- belongs to somebody else.
CREATE TABLE tidemark.belongings (
    pipeline           text NOT NULL REFERENCES tidemark.pipelines,
    kind               text NOT NULL CHECK (kind IN ('slot', 'publication')),
    system_identifier  text NOT NULL,
    database           text NOT NULL,
    name               text NOT NULL,
    origin             text NOT NULL CHECK (origin IN ('made', 'adopted')),
    noted_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, kind, system_identifier, database, name)
);

-- ---------------------------------------------------------------------------------------------------------------------
-- Staging: generations of the slot and their batches

-- One life of the slot. The one with the highest number is open; `staged_lsn` is the end of its chain of batches (R4).
CREATE TABLE tidemark.generations (
    pipeline           text NOT NULL REFERENCES tidemark.pipelines,
    number             integer NOT NULL CHECK (number > 0),
    system_identifier  text NOT NULL,
    timeline           integer NOT NULL,
    history            text,                  -- the timelines that the source came along, and where it left each
    source_started_at  text,                  -- start of the server whose WAL was last proven to be the staged one
    slot               text NOT NULL,
    start_lsn          pg_lsn NOT NULL,
    staged_lsn         pg_lsn NOT NULL,
    confirmed_lsn      pg_lsn,                -- the slot's position as last read back after a confirmation
    restart_lsn        pg_lsn,                -- the slot's: no transaction that was not staged then has WAL below
    heartbeat_lsn      pg_lsn,                -- end of the last heartbeat that a registered batch holds
    heartbeat_at       timestamptz,
    batches            bigint NOT NULL DEFAULT 0,  -- how many were registered
    registered_at      timestamptz,           -- when the last one was
    last_committed_at  timestamptz,           -- the newest commit in them
    retired_lsn        pg_lsn,                -- everything below is retired, but for what single tables keep
    retired_xid        bigint,                -- its highest transaction id: a backfill's snapshot has its xmin above
    opened_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    opened_by          text NOT NULL,
    reason             text NOT NULL,
    error              jsonb,                 -- the error to be raised once: {"kind": leaf, "facts": {...}}
    error_raised_at    timestamptz,
    PRIMARY KEY (pipeline, number),
    CHECK (start_lsn <= staged_lsn)
);

-- One row per registered manifest; only its retirement changes it. start_lsn of each is end_lsn of the one before.
-- The index of `batches_start_once` begins with the LSN: without statistics the planner would otherwise take it for
-- look-ups by the batch's end.
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
    retired_at         timestamptz,
    removed_at         timestamptz,           -- its folder is gone
    PRIMARY KEY (pipeline, generation, end_lsn),
    CONSTRAINT batches_start_once UNIQUE (start_lsn, generation, pipeline),
    FOREIGN KEY (pipeline, generation) REFERENCES tidemark.generations (pipeline, number),
    CHECK (start_lsn < end_lsn)
);
CREATE INDEX batches_of_run ON tidemark.batches (pipeline, run_id);
CREATE INDEX batches_to_remove ON tidemark.batches (pipeline, generation, end_lsn)
 WHERE retired_at IS NOT NULL AND removed_at IS NULL;

-- The tables that a batch touches: those with changes or claimed chunks in it. A batch is retired table by table: one
-- table that keeps its files does not keep those of the others. Retired means applied, and evidence of nothing: the
-- files go, then the row, but the newest retired row of each table and generation stays, since the table's next plan
-- begins there.
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
    max_xid     bigint,
    first_committed_at  timestamptz,          -- when the first of its changes committed; NULL without any
    claims      jsonb NOT NULL DEFAULT '[]',
    sweeps      jsonb NOT NULL DEFAULT '[]',
    retired_at  timestamptz,
    removed_at  timestamptz,
    PRIMARY KEY (pipeline, generation, "table", end_lsn),
    FOREIGN KEY (pipeline, generation, end_lsn) REFERENCES tidemark.batches (pipeline, generation, end_lsn)
);
-- Evidence is looked up by transaction id, and by backfill.
CREATE INDEX batch_tables_by_xid ON tidemark.batch_tables (pipeline, generation, "table", max_xid)
 WHERE max_xid IS NOT NULL;
CREATE INDEX batch_tables_claiming ON tidemark.batch_tables (pipeline, generation, "table", end_lsn)
 WHERE claims <> '[]';
CREATE INDEX batch_tables_to_remove ON tidemark.batch_tables (pipeline, generation, end_lsn)
 WHERE retired_at IS NOT NULL AND removed_at IS NULL;
CREATE INDEX batch_tables_removed ON tidemark.batch_tables (pipeline, generation, "table", end_lsn)
 WHERE removed_at IS NOT NULL;

-- ---------------------------------------------------------------------------------------------------------------------
-- Tables: their state, definitions and relations at the source

-- One row per table that was ever captured. The last three columns are the states of its life
-- (tidemark.schema.table_life), each computed here and nowhere else.
CREATE TABLE tidemark.tables (
    pipeline          text NOT NULL REFERENCES tidemark.pipelines,
    "table"           text NOT NULL,
    state             text NOT NULL DEFAULT 'merging' CHECK (state IN ('merging', 'deferred', 'paused', 'parked')),
    state_since       timestamptz NOT NULL DEFAULT clock_timestamp(),
    paused_by         text,
    captured          boolean NOT NULL DEFAULT true,
    forgotten_at      timestamptz,            -- captured no more, and not shown until it joins again
    join_horizon      bigint,                 -- xid8 of the source: a snapshot counts if its xmin is at or above it
    joined_timeline   integer,                -- on which its join was judged, or on which it was last seen empty
    joined_lsn        pg_lsn,                 -- what was durable there then
    needs_backfill    boolean NOT NULL DEFAULT false,
    backfill_kind     text,
    backfill_reason   text,
    backfill_since    timestamptz,
    marks             bigint NOT NULL DEFAULT 0,  -- how often anything marked it for a backfill
    columns_in_doubt  int[],                  -- numbers of the columns that alone may differ from the source; NULL: any
    lost_keys         jsonb,                  -- of kind 'fork': keys whose changes the source lost; NULL: any, or none
    error             jsonb,                  -- {"kind", "move", "message"} of the last failure, NULL after a success
    error_at          timestamptz,
    failed_runs       integer NOT NULL DEFAULT 0,
    tried_at          timestamptz,
    holes             jsonb NOT NULL DEFAULT '{}',  -- column -> rows of the target whose value is known nowhere
    hole_keys         jsonb NOT NULL DEFAULT '[]',
    fingerprint       jsonb,
    changed_at        timestamptz,            -- by when its newest staged change had committed at the source
    capture_state     text NOT NULL GENERATED ALWAYS AS (
        CASE WHEN captured AND join_horizon IS NULL THEN 'joining'
             WHEN captured THEN 'captured'
             WHEN forgotten_at IS NULL THEN 'left'
             ELSE 'forgotten' END) STORED,
    merge_state       text NOT NULL GENERATED ALWAYS AS (
        CASE WHEN state = 'parked' AND error ->> 'move' = 'RETRY' THEN 'retried'
             ELSE state END) STORED,
    target_state      text NOT NULL GENERATED ALWAYS AS (
        CASE WHEN NOT needs_backfill THEN 'complete'
             WHEN backfill_kind IN ('existing_rows', 'holes') THEN backfill_kind
             ELSE 'needs_backfill' END) STORED,
    PRIMARY KEY (pipeline, "table"),
    CHECK (state <> 'parked' OR error IS NOT NULL),
    CHECK (needs_backfill = (backfill_reason IS NOT NULL)),
    CONSTRAINT tables_paused_by_check CHECK ((state = 'paused') = (paused_by IS NOT NULL))
);

-- The errors that the last preflight found in single tables, the never captured ones included. The drain passes over a
-- table that is `barred` and not captured; one that comes back joins anew.
CREATE TABLE tidemark.table_errors (
    pipeline  text NOT NULL,
    "table"   text NOT NULL,
    errors    jsonb NOT NULL,                 -- [{"check", "message", "remedy", "bars"}], in the order they were found
    barred    boolean NOT NULL,               -- it is not captured because of them
    since     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, "table")
);

CREATE TABLE tidemark.schema_versions (
    pipeline    text NOT NULL,
    "table"     text NOT NULL,
    version     integer NOT NULL,
    definition  jsonb NOT NULL,
    generation  integer NOT NULL,
    start_lsn   pg_lsn NOT NULL,              -- of the first batch whose files follow it
    streamed    boolean NOT NULL DEFAULT true,  -- false while only a backfill's reader has met it, and no stream
    PRIMARY KEY (pipeline, "table", version),
    FOREIGN KEY (pipeline, "table") REFERENCES tidemark.tables
);

-- What was decided when a table's definition changed at the source, with both definitions. Rows are never changed.
CREATE TABLE tidemark.definition_changes (
    pipeline    text NOT NULL REFERENCES tidemark.pipelines,
    "table"     text NOT NULL,
    number      bigint GENERATED ALWAYS AS IDENTITY,
    generation  int NOT NULL,
    lsn         pg_lsn NOT NULL,              -- the start of the batch that showed the change
    decided     text NOT NULL
                CHECK (decided IN ('followed', 'marked', 'parked', 'frozen', 'asked', 'accepted', 'rebuilt')),
    reason      text NOT NULL,
    before      jsonb,                        -- NULL where the catalogue alone showed it
    after       jsonb,
    decided_by  text,                         -- who accepted it
    decided_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, "table", number)
);

-- The table that a relation of the source is kept as: its Delta tables, and all its rows of the ledger, stand under
-- that id, whatever the relation is called. Another relation with the name of an older one has an id of its own.
CREATE TABLE tidemark.relations (
    pipeline           text NOT NULL REFERENCES tidemark.pipelines,
    system_identifier  text NOT NULL,
    relation_oid       bigint NOT NULL,
    "table"            text NOT NULL,
    name               text NOT NULL,         -- as the source called it last
    born               bigint,                -- the transaction that made it; NULL: not read from the catalogue yet
    gone_lsn           pg_lsn,                -- not at the source any more: all of it lies below
    gone_at            timestamptz,
    noted_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, system_identifier, relation_oid)
);
CREATE INDEX relations_by_table ON tidemark.relations (pipeline, "table");

-- How many values of a column did not fit its Delta type, and were not replaced since. `name` is the column's in that
-- version of the table.
CREATE TABLE tidemark.unfit_values (
    pipeline  text NOT NULL REFERENCES tidemark.pipelines,
    "table"   text NOT NULL,
    version   integer NOT NULL,
    name      text NOT NULL,
    values    bigint NOT NULL,
    PRIMARY KEY (pipeline, "table", version, name)
);

-- Which columns are masked or left out, by the relation's OID and their attnum, so that no rename unmasks them. `rows`
-- is how the columns were called in `snapshot`, which is older than everything that is not staged yet.
CREATE TABLE tidemark.guards (
    pipeline           text NOT NULL,
    system_identifier  text NOT NULL,
    relation_oid       bigint NOT NULL,
    "table"            text NOT NULL,         -- as it was called then
    timeline           integer NOT NULL,
    snapshot           text,                  -- NULL where no snapshot is known to be older
    rows               jsonb NOT NULL DEFAULT '{}',  -- attnum -> [name, xmin]
    guards             jsonb NOT NULL,        -- attnum -> {"how", "table", "column"}
    PRIMARY KEY (pipeline, system_identifier, relation_oid)
);

-- Tables that have ended, since another one has their name: which of their Delta tables are kept, since when, and when
-- they were removed.
CREATE TABLE tidemark.put_aside (
    pipeline        text NOT NULL REFERENCES tidemark.pipelines,
    "table"         text NOT NULL,
    name            text NOT NULL,            -- as the source called it last
    lsn             pg_lsn,                   -- all of it lies below; NULL: unknown
    since           timestamptz NOT NULL DEFAULT clock_timestamp(),
    removing_since  timestamptz,              -- from here on its Delta tables may be there in part
    removed_at      timestamptz,
    PRIMARY KEY (pipeline, "table")
);

-- Another shape of a relation, which is built beside the one before: its table has an id of its own, and takes the
-- other's place once all rows are in it. One that is built from staging takes over what `before` holds below
-- `base_lsn`; without a base, a backfill brings its rows.
CREATE TABLE tidemark.shapes (
    pipeline         text NOT NULL REFERENCES tidemark.pipelines,
    "table"          text NOT NULL,
    before           text NOT NULL,           -- as which the relation was kept until then
    beside           text,                    -- whose place it takes: readers have that one until this one is whole
    begun_lsn        pg_lsn,                  -- all of `before` lies below; NULL: chosen, and no batch holds it yet
    begun_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    base_generation  int,
    base_lsn         pg_lsn,
    named_by         text,                    -- the last plan that was to record its name in `_positions`
    placed_at        timestamptz,             -- since when it has the name
    PRIMARY KEY (pipeline, "table")
);

-- ---------------------------------------------------------------------------------------------------------------------
-- Merging: plans and positions

-- The positions of the two Delta tables, as ingested from results; they only rise. `begun_lsn` is where a table began
-- anew: no Delta table holds what lies below, and nothing of it is planned any more.
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
    begun_lsn    pg_lsn,
    risen_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, generation, "table")
);

-- What a plan may still have to apply: per table, the batches that end above its position. Its cost depends on what is
-- new, with or without statistics: positions are looked up one by one, and OFFSET 0 keeps the planner from reading all
-- batches once for all tables.
CREATE VIEW tidemark.unapplied AS
SELECT g.pipeline, g.number AS generation, t."table", b.start_lsn, b.end_lsn, b.files, b.counts, b.converted,
       b.unchanged, b.moved, b.changes, b.bytes, b.max_xid, b.first_committed_at, b.claims,
       b.sweeps
  FROM tidemark.generations g
  JOIN tidemark.tables t ON t.pipeline = g.pipeline
 CROSS JOIN LATERAL (
       SELECT * FROM tidemark.batch_tables x
        WHERE x.pipeline = g.pipeline AND x.generation = g.number AND x."table" = t."table"
          AND x.end_lsn > coalesce((SELECT p.applied_lsn FROM tidemark.positions p
                                     WHERE p.pipeline = g.pipeline AND p.generation = g.number
                                       AND p."table" = t."table"), '0/0')
        ORDER BY x.end_lsn OFFSET 0) b;

-- One row per plan written; `result` is NULL until it is ingested.
CREATE TABLE tidemark.plans (
    pipeline      text NOT NULL REFERENCES tidemark.pipelines,
    plan          text NOT NULL,
    generation    integer NOT NULL,
    run_id        text NOT NULL,
    holder        text NOT NULL,
    path          text NOT NULL,
    tables        jsonb NOT NULL,             -- table id -> end LSN of the plan for it
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    result        jsonb,
    ingested_at   timestamptz,
    abandoned_at  timestamptz,
    PRIMARY KEY (pipeline, plan)
);
CREATE INDEX plans_open ON tidemark.plans (pipeline, created_at) WHERE ingested_at IS NULL AND abandoned_at IS NULL;

-- ---------------------------------------------------------------------------------------------------------------------
-- Backfills and verification

-- A backfill reads existing rows of one table. One of another purpose than 'fill' is a verify, whose chunks are
-- compared with the target.
CREATE TABLE tidemark.backfills (
    pipeline        text NOT NULL REFERENCES tidemark.pipelines,
    backfill        text NOT NULL,
    "table"         text NOT NULL,
    generation      integer NOT NULL,
    mode            text NOT NULL CHECK (mode IN ('chunks', 'exported_snapshot', 'keys')),
    purpose         text NOT NULL DEFAULT 'fill' CHECK (purpose IN ('fill', 'verify', 'repair')),
    row_filter      text,                     -- SQL; NULL and mode other than keys means the whole table
    columns         int[],                    -- what it reads besides the key; NULL: all columns
    parts           jsonb,                    -- the parts of the table that it reads: [{lower, upper}]; NULL: all
    chunk_rows      integer NOT NULL,
    run_id          text NOT NULL,            -- the DAG run that reads it now; another one may adopt it
    snapshot        text NOT NULL,            -- pg_current_snapshot() before the first chunk
    timeline        integer NOT NULL,         -- on which its chunks are read
    snapshot_lsn    pg_lsn,                   -- durable there when the snapshot was taken
    estimated_rows  bigint NOT NULL,
    sweeps          boolean NOT NULL,         -- whether rows that were read nowhere are removed at its end
    key_order       jsonb NOT NULL DEFAULT '[]',  -- of which its ranges are parts, as it was when it was opened
    marks           bigint NOT NULL DEFAULT 0,  -- those of its table when it was opened: a later mark is above
    state           text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'applied', 'closed')),
    state_reason    text,                     -- why it was closed before it was applied
    unreadable      boolean NOT NULL DEFAULT false,  -- closed since PostgreSQL could not read the table
    opened_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    active_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at        timestamptz,
    removed_at      timestamptz,              -- its folder is gone
    swept           bigint,
    complete_lsn    pg_lsn,                   -- what it read equals the source as of this LSN, and follows from there
    PRIMARY KEY (pipeline, backfill),
    FOREIGN KEY (pipeline, generation) REFERENCES tidemark.generations (pipeline, number)
);
-- A table may be filled while it is verified, which then proves nothing.
CREATE UNIQUE INDEX backfills_one_open ON tidemark.backfills (pipeline, "table", (purpose = 'fill'))
 WHERE state = 'open';
CREATE INDEX backfills_of_run ON tidemark.backfills (pipeline, run_id);

-- A half-open part of the key's order, (lower, upper]; NULL is no bound. The cursor is the last key read; a chunk is
-- recorded by a compare-and-set on it. `keys` holds the keys to read instead.
CREATE TABLE tidemark.ranges (
    pipeline    text NOT NULL,
    backfill    text NOT NULL,
    range       integer NOT NULL,
    lower       text[],
    upper       text[],
    keys        jsonb,
    cursor      text[],
    next_chunk  integer NOT NULL DEFAULT 1,
    done        boolean NOT NULL DEFAULT false,
    PRIMARY KEY (pipeline, backfill, range),
    FOREIGN KEY (pipeline, backfill) REFERENCES tidemark.backfills
);

-- One row per chunk that was read. A chunk whose table changed since is rejected, and its part is a new range.
CREATE TABLE tidemark.chunks (
    pipeline          text NOT NULL,
    backfill          text NOT NULL,
    chunk             text NOT NULL,          -- "<range>-<number>"
    attempt           uuid NOT NULL,
    "table"           text NOT NULL,
    generation        integer NOT NULL,
    range             integer NOT NULL,
    lower             text[],                 -- the part it covers: (lower, upper]
    upper             text[],
    snapshot          text NOT NULL,
    consistent_point  pg_lsn,
    fingerprint       jsonb NOT NULL,
    timeline          integer,                -- on which its snapshot was taken
    low_lsn           pg_lsn NOT NULL,
    read_lsn          pg_lsn NOT NULL,        -- end of the WAL after its snapshot: from here on its evidence is there
    files             jsonb NOT NULL,
    converted         jsonb NOT NULL,
    rows              bigint NOT NULL,
    bytes             bigint NOT NULL,
    seconds           double precision NOT NULL,
    read_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    rejected          text,                   -- why it was not claimed and is read again
    claimed_lsn       pg_lsn,                 -- end of the batch that claimed it
    watermark_lsn     pg_lsn,
    result            jsonb,                  -- what became of its rows, from the plan's result
    PRIMARY KEY (pipeline, backfill, chunk, attempt),
    FOREIGN KEY (pipeline, backfill, range) REFERENCES tidemark.ranges,
    CHECK (rejected IS NULL OR claimed_lsn IS NULL)
);
CREATE INDEX chunks_unclaimed ON tidemark.chunks (pipeline) WHERE claimed_lsn IS NULL AND rejected IS NULL;

-- The parts of a table's key order, (lower, upper], that cover it, and the last proof that each equals the source.
CREATE TABLE tidemark.parts (
    pipeline        text NOT NULL REFERENCES tidemark.pipelines,
    "table"         text NOT NULL,
    part            integer NOT NULL,
    key_order       jsonb NOT NULL,           -- in which its bounds are positions
    lower           text[],
    upper           text[],
    estimated_rows  bigint NOT NULL,          -- when the table was cut
    proven_at       timestamptz,
    proven_lsn      pg_lsn,
    differing       text,                     -- the verify that found a difference here, until it is gone
    PRIMARY KEY (pipeline, "table", part)
);

-- ---------------------------------------------------------------------------------------------------------------------
-- Observations: nothing that is staged or applied is decided by them

-- One row per run of a DAG of the pipeline, kept for 90 days. A stage is written when it ends, the rest by `health`.
CREATE TABLE tidemark.runs (
    pipeline           text NOT NULL REFERENCES tidemark.pipelines,
    run_id             text NOT NULL,
    began_at           timestamptz NOT NULL,
    ended_at           timestamptz NOT NULL,
    stages             jsonb NOT NULL DEFAULT '{}',  -- stage -> {"s": seconds of all tries, "tries", "failed", "error"}
    level_at           timestamptz,           -- all that had committed by then was staged
    generation         integer,
    staged_lsn         pg_lsn,
    applied_lsn        pg_lsn,                -- in every table that is merged
    confirmed_lsn      pg_lsn,
    source_lsn         pg_lsn,
    lag_bytes          bigint,                -- staged and not applied
    lag_s              double precision,      -- the age of the oldest change that is not applied
    retained_bytes     bigint,                -- WAL that the source keeps for the slot
    limit_bytes        bigint,                -- with how much the slot is lost
    batches            integer,               -- registered by this run
    changes            bigint,
    unapplied_batches  bigint,
    unapplied_changes  bigint,
    verdict            text CHECK (verdict IN ('ok', 'warning', 'red')),
    tables             jsonb,                 -- state -> number of tables
    PRIMARY KEY (pipeline, run_id)
);
CREATE INDEX runs_by_time ON tidemark.runs (pipeline, began_at);
CREATE INDEX runs_level ON tidemark.runs (pipeline, level_at) WHERE level_at IS NOT NULL;

-- The notes of the last preflight of a run: a note is logged when it comes or changes, not in every run.
CREATE TABLE tidemark.said_notes (
    pipeline  text NOT NULL,
    note      text NOT NULL,
    PRIMARY KEY (pipeline, note)
);

-- Alerts that were sent and are not over. `subject` tells apart the alerts of one kind. A row goes when its end was
-- sent.
CREATE TABLE tidemark.alerts (
    pipeline  text NOT NULL REFERENCES tidemark.pipelines,
    kind      text NOT NULL,
    subject   text NOT NULL,
    line      text NOT NULL,
    told_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, kind, subject)
);

-- The last maintenance of each pipeline.
CREATE TABLE tidemark.maintenance (
    pipeline  text PRIMARY KEY REFERENCES tidemark.pipelines,
    ended_at  timestamptz NOT NULL,
    retired   jsonb,                          -- what was removed of staging and ledger
    tables    jsonb                           -- table -> what was done to its Delta tables
);

-- The size of the Delta tables as of the last merge or maintenance.
CREATE TABLE tidemark.delta_tables (
    pipeline  text NOT NULL REFERENCES tidemark.pipelines,
    "table"   text NOT NULL,
    kind      text NOT NULL CHECK (kind IN ('current', 'history')),
    files     bigint NOT NULL,
    bytes     bigint NOT NULL,
    rows      bigint,                         -- NULL where the table's log lacks it
    sized_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at   timestamptz,                    -- when maintenance found it in the lake; NULL: no one has looked yet
    PRIMARY KEY (pipeline, "table", kind)
);
