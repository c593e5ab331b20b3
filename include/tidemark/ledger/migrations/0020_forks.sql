-- The keys whose changes the target has and the source lost (backfill_kind 'fork'), as texts that PostgreSQL reads; NULL
-- where any row may be wrong, and where nothing is.

ALTER TABLE tidemark.tables ADD COLUMN lost_keys jsonb;

-- The timelines that the source came along, and where it left each: equal numbers alone prove nothing. NULL: not noted.
-- And when the server was started that was last asked whether its WAL is the one that was staged.
ALTER TABLE tidemark.generations
    ADD COLUMN history            text,
    ADD COLUMN source_started_at  text;
