-- Another shape of a relation, which is built beside the one before: its table has an id of its own, and takes the
-- other's place once all rows are in it.

CREATE TABLE tidemark.shapes (
    pipeline    text NOT NULL REFERENCES tidemark.pipelines,
    "table"     text NOT NULL,
    before      text NOT NULL,                -- as which the relation was kept until then
    beside      text,                         -- whose place it takes: what readers see until it is whole
    begun_lsn   pg_lsn,                       -- all of `before` lies below; NULL: chosen, and no batch holds it yet
    begun_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    named_by    text,                         -- the last plan that was to say in `_positions` that it has the name
    placed_at   timestamptz,                  -- since when it has
    PRIMARY KEY (pipeline, "table")
);

ALTER TABLE tidemark.definition_changes DROP CONSTRAINT definition_changes_decided_check;
ALTER TABLE tidemark.definition_changes ADD CONSTRAINT definition_changes_decided_check
    CHECK (decided IN ('followed', 'marked', 'parked', 'frozen', 'asked', 'accepted', 'rebuilt'));
