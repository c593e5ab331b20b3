-- A table can begin anew: where it did, no Delta table holds what lies below, and nothing of it is planned any more.

ALTER TABLE tidemark.positions ADD COLUMN begun_lsn pg_lsn;
