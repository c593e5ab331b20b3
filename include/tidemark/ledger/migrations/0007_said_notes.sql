-- The notes of the last preflight that a run made: one that stands is said when it comes or changes, not in every run.

CREATE TABLE tidemark.said_notes (
    pipeline  text NOT NULL,
    note      text NOT NULL,
    PRIMARY KEY (pipeline, note)
);
