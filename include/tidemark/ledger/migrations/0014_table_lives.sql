-- The three states of a table's life (tidemark.schema.table_life), each computed in this one place from what is kept.
-- 'unknown' is a table without a row.

ALTER TABLE tidemark.tables
    ADD COLUMN capture_state text NOT NULL GENERATED ALWAYS AS (
        CASE WHEN captured AND join_horizon IS NULL THEN 'joining'
             WHEN captured THEN 'captured'
             WHEN forgotten_at IS NULL THEN 'left'
             ELSE 'forgotten' END) STORED,
    ADD COLUMN merge_state text NOT NULL GENERATED ALWAYS AS (
        CASE WHEN state = 'parked' AND error ->> 'move' = 'RETRY' THEN 'retried'
             ELSE state END) STORED,
    ADD COLUMN target_state text NOT NULL GENERATED ALWAYS AS (
        CASE WHEN NOT needs_backfill THEN 'complete'
             WHEN backfill_kind IN ('existing_rows', 'holes') THEN backfill_kind
             ELSE 'needs_backfill' END) STORED;
