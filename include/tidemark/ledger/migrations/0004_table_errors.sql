-- What the last preflight found wrong with single tables, the never captured ones included. A table that is `barred` and
-- not captured is passed over by the drain; one that comes back joins anew.

CREATE TABLE tidemark.table_errors (
    pipeline     text NOT NULL,
    "table"      text NOT NULL,
    errors       jsonb NOT NULL,              -- [{"check", "message", "remedy", "bars"}], in the order they were found
    barred       boolean NOT NULL,            -- it is not captured because of them
    since        timestamptz NOT NULL DEFAULT clock_timestamp(),
    notified_at  timestamptz,
    PRIMARY KEY (pipeline, "table")
);
