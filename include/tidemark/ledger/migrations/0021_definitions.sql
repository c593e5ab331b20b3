-- What was decided when a table's definition changed at the source, with both definitions. Rows are never changed.

CREATE TABLE tidemark.definition_changes (
    pipeline    text NOT NULL REFERENCES tidemark.pipelines,
    "table"     text NOT NULL,
    number      bigint GENERATED ALWAYS AS IDENTITY,
    generation  int NOT NULL,
    lsn         pg_lsn NOT NULL,              -- the start of the batch that showed the change
    decided     text NOT NULL CHECK (decided IN ('followed', 'marked', 'parked', 'frozen', 'asked', 'accepted')),
    reason      text NOT NULL,
    before      jsonb,                        -- NULL where the catalogue alone showed it
    after       jsonb,
    decided_by  text,                         -- who accepted it
    decided_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, "table", number)
);
