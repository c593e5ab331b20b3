-- %(number)s chunks that the open backfill's range has behind it. All of them are claimed by a batch already, as those of
-- a capture that goes on beside the readers.

INSERT INTO tidemark.chunks
       (pipeline, backfill, chunk, attempt, "table", generation, range, snapshot, timeline, fingerprint, low_lsn,
        read_lsn, files, converted, rows, bytes, seconds, claimed_lsn, watermark_lsn)
SELECT b.pipeline, b.backfill, r.range || '-' || r.next_chunk + i, gen_random_uuid(), b."table", b.generation, r.range,
       '1:1:', b.timeline, '{}', '0/1', '0/1', '[]', '{}', 80, 1000, 0.1, '0/2', '0/1'
  FROM tidemark.backfills b JOIN tidemark.ranges r USING (pipeline, backfill),
       generate_series(0, %(number)s - 1) i
 WHERE b.state = 'open' AND NOT r.done;

UPDATE tidemark.ranges SET next_chunk = next_chunk + %(number)s WHERE NOT done;
