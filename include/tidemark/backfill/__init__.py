"""Plans, reads and reports backfills and verifies.

Between reading and reporting, the drain, the merge and the confirmation of `tidemark.capture` run, as in every run.
A chunk is durable once the ledger has recorded it. Any run may claim and merge it.

A chunk has four durable stages, and one record for each:

    Range        ledger.reading.backfills  planned: a range of the key's order and the cursor in it
    ReadChunk    ledger.reading.chunks     read: its files are durable, its row is in the ledger
    Claim        formats.manifest          claimed: a batch has its high watermark and names its files
    ChunkResult  formats.merge_result      merged, or compared: the counts of its rows by result

`ledger.reading.chunks.ChunkId` identifies a chunk: backfill, chunk and attempt. The watermarks in the stream
(`formats.watermark`) contain this id.
"""
