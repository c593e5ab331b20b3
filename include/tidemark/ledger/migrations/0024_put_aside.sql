-- Tables of which nothing comes any more, since another one has their name: which Delta tables of theirs are kept, since
-- when, and what became of them.

CREATE TABLE tidemark.put_aside (
    pipeline        text NOT NULL REFERENCES tidemark.pipelines,
    "table"         text NOT NULL,
    name            text NOT NULL,          -- as the source called it last
    lsn             pg_lsn,                 -- all of it lies below; NULL: nobody has seen where it ended
    since           timestamptz NOT NULL DEFAULT clock_timestamp(),
    removing_since  timestamptz,            -- from here on its Delta tables may be there in part
    removed_at      timestamptz,
    PRIMARY KEY (pipeline, "table")
);

INSERT INTO tidemark.put_aside (pipeline, "table", name, lsn)
SELECT r.pipeline, r."table", (array_agg(r.name ORDER BY r.noted_at DESC))[1], max(r.gone_lsn)
  FROM tidemark.relations r
  JOIN tidemark.tables t ON t.pipeline = r.pipeline AND t."table" = r."table" AND t.forgotten_at IS NOT NULL
 GROUP BY r.pipeline, r."table"
HAVING bool_and(r.gone_lsn IS NOT NULL)
   AND EXISTS (SELECT 1 FROM tidemark.relations o
                WHERE o.pipeline = r.pipeline AND o."table" <> r."table" AND o.gone_lsn IS NULL
                  AND o.name = (array_agg(r.name ORDER BY r.noted_at DESC))[1]);
