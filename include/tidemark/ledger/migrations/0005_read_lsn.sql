-- Where the WAL stood once a chunk's snapshot had been taken: only a watermark at or above it says that all of the
-- chunk's evidence has arrived. Chunks from before are measured by their low watermark, as they were.

ALTER TABLE tidemark.chunks ADD COLUMN read_lsn pg_lsn;
UPDATE tidemark.chunks SET read_lsn = low_lsn;
ALTER TABLE tidemark.chunks ALTER COLUMN read_lsn SET NOT NULL;
