-- A table that is built anew from what staging holds of the one before: what it takes over before that, which is all of
-- `before` below that position. NULL: nothing, a backfill brings its rows.

ALTER TABLE tidemark.shapes ADD COLUMN base_generation int;
ALTER TABLE tidemark.shapes ADD COLUMN base_lsn pg_lsn;
