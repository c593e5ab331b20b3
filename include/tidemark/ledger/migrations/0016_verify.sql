-- Verification: a verify is a backfill whose chunks are compared with the target. `parts` of a backfill are what it reads
-- of the table's parts, as [{lower, upper}, …]; NULL is the whole table, or what its filter or keys say.

ALTER TABLE tidemark.backfills
    ADD COLUMN purpose  text NOT NULL DEFAULT 'fill' CHECK (purpose IN ('fill', 'verify', 'repair')),
    ADD COLUMN parts    jsonb;

-- A table may be filled while it is verified, which then proves nothing.
DROP INDEX tidemark.backfills_one_open;
CREATE UNIQUE INDEX backfills_one_open ON tidemark.backfills (pipeline, "table", (purpose = 'fill'))
    WHERE state = 'open';

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
    differing       text,                     -- what a verify found here, until it is gone
    PRIMARY KEY (pipeline, "table", part)
);
