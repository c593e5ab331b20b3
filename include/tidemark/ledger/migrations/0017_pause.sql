-- A person may pause a table: nothing of it is merged until somebody resumes it. As parked and deferred tables it holds
-- back neither the slot nor the others.

ALTER TABLE tidemark.tables
    DROP CONSTRAINT tables_state_check,
    ADD CONSTRAINT tables_state_check CHECK (state IN ('merging', 'deferred', 'paused', 'parked')),
    ADD COLUMN paused_by text,
    ADD CONSTRAINT tables_paused_by_check CHECK ((state = 'paused') = (paused_by IS NOT NULL));
