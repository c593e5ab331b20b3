-- What a pipeline's file says of its tables, as a digest (`columns`: what it says of their columns alone): the one that holds, and those that held before. Preflight notes
-- it; whoever has another file waits.

CREATE TABLE tidemark.pipeline_files (
    pipeline       text NOT NULL REFERENCES tidemark.pipelines,
    digest         text NOT NULL,
    columns        text NOT NULL,
    noted_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    superseded_at  timestamptz,
    PRIMARY KEY (pipeline, digest)
);

CREATE UNIQUE INDEX pipeline_files_one_holds ON tidemark.pipeline_files (pipeline) WHERE superseded_at IS NULL;
