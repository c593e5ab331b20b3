-- Backfills: what is read of existing rows, how far, and which batch took it. A backfill is one table's.

CREATE TABLE tidemark.backfills (
    pipeline        text NOT NULL REFERENCES tidemark.pipelines,
    backfill        text NOT NULL,
    "table"         text NOT NULL,
    generation      integer NOT NULL,
    mode            text NOT NULL CHECK (mode IN ('chunks', 'exported_snapshot', 'keys')),
    row_filter      text,                     -- SQL; NULL and mode other than keys means the whole table
    chunk_rows      integer NOT NULL,
    run_id          text NOT NULL,            -- the DAG run that reads it now; another one may adopt it
    snapshot        text NOT NULL,            -- pg_current_snapshot() before the first chunk
    estimated_rows  bigint NOT NULL,
    sweeps          boolean NOT NULL,         -- whether rows that were read nowhere are removed at its end
    key_order       jsonb NOT NULL DEFAULT '[]',  -- of which its ranges are parts, as it was when it was opened
    state           text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'applied', 'closed')),
    state_reason    text,                     -- why it was closed before it was applied
    opened_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    active_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at        timestamptz,
    swept           bigint,
    complete_lsn    pg_lsn,                   -- what it read equals the source as of this LSN, and follows from there
    PRIMARY KEY (pipeline, backfill),
    FOREIGN KEY (pipeline, generation) REFERENCES tidemark.generations (pipeline, number)
);
CREATE UNIQUE INDEX backfills_one_open ON tidemark.backfills (pipeline, "table") WHERE state = 'open';
CREATE INDEX backfills_of_run ON tidemark.backfills (pipeline, run_id);

-- A half-open part of the key's order, (lower, upper]; NULL is no bound. Keys are arrays of PostgreSQL's texts. The
-- cursor is the last key read; a chunk is recorded by a compare-and-set on it. `keys` holds the keys to read instead.
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
    low_lsn           pg_lsn NOT NULL,
    files             jsonb NOT NULL,
    converted         jsonb NOT NULL,
    rows              bigint NOT NULL,
    bytes             bigint NOT NULL,
    seconds           double precision NOT NULL,
    read_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    rejected          text,                   -- why it was not claimed and is read again
    claimed_lsn       pg_lsn,                 -- end of the batch that claimed it
    watermark_lsn     pg_lsn,
    result            jsonb,                  -- what became of its rows, as a plan's result says
    PRIMARY KEY (pipeline, backfill, chunk, attempt),
    FOREIGN KEY (pipeline, backfill, range) REFERENCES tidemark.ranges,
    CHECK (rejected IS NULL OR claimed_lsn IS NULL)
);
CREATE INDEX chunks_unclaimed ON tidemark.chunks (pipeline) WHERE claimed_lsn IS NULL AND rejected IS NULL;

ALTER TABLE tidemark.batch_tables
    ADD COLUMN max_xid bigint,
    ADD COLUMN claims  jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN sweeps  jsonb NOT NULL DEFAULT '[]';

DROP VIEW tidemark.unapplied;
CREATE VIEW tidemark.unapplied AS
SELECT b.*
  FROM tidemark.batch_tables b
  LEFT JOIN tidemark.positions p USING (pipeline, generation, "table")
 WHERE p.applied_lsn IS NULL OR b.end_lsn > p.applied_lsn;

-- `holes` becomes what the target holds now, with the keys in `hole_keys`; `marked_at` is when anything last asked for
-- a backfill, whether or not the mark that was there stayed.
ALTER TABLE tidemark.tables
    ADD COLUMN hole_keys  jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN marked_at  timestamptz;

-- A version that only a backfill's reader knows is ahead of the stream: the drain does not compare with it.
ALTER TABLE tidemark.schema_versions ADD COLUMN streamed boolean NOT NULL DEFAULT true;
