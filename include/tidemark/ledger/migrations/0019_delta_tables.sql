-- How large the Delta tables are, as the last maintenance saw them.

CREATE TABLE tidemark.delta_tables (
    pipeline  text NOT NULL REFERENCES tidemark.pipelines,
    "table"   text NOT NULL,
    kind      text NOT NULL CHECK (kind IN ('current', 'history')),
    files     bigint NOT NULL,
    bytes     bigint NOT NULL,
    rows      bigint,                         -- NULL where the table's log does not say
    seen_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, "table", kind)
);
