-- Which columns are masked or left out, by the relation's OID and their attnum, so that no rename unmasks them. `rows` is
-- how the columns were called when `snapshot` was taken: a look from before everything that is not staged yet.

CREATE TABLE tidemark.guards (
    pipeline           text NOT NULL,
    system_identifier  text NOT NULL,
    relation_oid       bigint NOT NULL,
    "table"            text NOT NULL,         -- as it was called then
    timeline           integer NOT NULL,
    snapshot           text,                  -- NULL where no look is known to be from before
    rows               jsonb NOT NULL DEFAULT '{}',  -- attnum -> [name, xmin]
    guards             jsonb NOT NULL,        -- attnum -> {"how", "table", "column"}
    PRIMARY KEY (pipeline, system_identifier, relation_oid)
);
