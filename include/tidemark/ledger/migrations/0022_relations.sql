-- As which table a relation of the source is kept: its Delta tables, and all that the ledger has of it, stand under that
-- id, whatever the relation is called. Another relation with the name of an older one has an id of its own.

CREATE TABLE tidemark.relations (
    pipeline           text NOT NULL REFERENCES tidemark.pipelines,
    system_identifier  text NOT NULL,
    relation_oid       bigint NOT NULL,
    "table"            text NOT NULL,
    name               text NOT NULL,         -- as the source called it last
    born               bigint,                -- the transaction that made it, as the catalogue has it; NULL: not seen yet
    gone_lsn           pg_lsn,                -- not at the source any more: all of it lies below
    gone_at            timestamptz,
    noted_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, system_identifier, relation_oid)
);
CREATE INDEX relations_by_table ON tidemark.relations (pipeline, "table");

INSERT INTO tidemark.relations (pipeline, system_identifier, relation_oid, "table", name)
SELECT t.pipeline, g.system_identifier, (t.fingerprint ->> 'relation_oid')::bigint, t."table", t."table"
  FROM tidemark.tables t
  JOIN tidemark.generations g
       ON g.pipeline = t.pipeline
      AND g.number = (SELECT max(number) FROM tidemark.generations n WHERE n.pipeline = t.pipeline)
 WHERE t.fingerprint IS NOT NULL
    ON CONFLICT DO NOTHING;
