-- Where in the source's history of WAL a kept snapshot stands: it counts only in a history that has this point. `timeline`
-- of a backfill is the one that its chunks are read on; of a chunk, whose point is `read_lsn`, and of a join, the one that
-- they were taken on. NULL: from before these columns, taken for a point that a promotion has lost.

ALTER TABLE tidemark.backfills
    ADD COLUMN timeline      integer,
    ADD COLUMN snapshot_lsn  pg_lsn;          -- durable there when the snapshot was taken

UPDATE tidemark.backfills b SET timeline = g.timeline
  FROM tidemark.generations g WHERE (g.pipeline, g.number) = (b.pipeline, b.generation);
ALTER TABLE tidemark.backfills ALTER COLUMN timeline SET NOT NULL;

ALTER TABLE tidemark.chunks ADD COLUMN timeline integer;

ALTER TABLE tidemark.tables
    ADD COLUMN joined_timeline  integer,
    ADD COLUMN joined_lsn       pg_lsn;       -- durable there when its join was judged, or it was last seen empty
