"""Plans, reads and reports backfills, beside the stages that they share with the capture.

Between reading and reporting come the drain, the merge and the confirmation of `tidemark.capture`, as in every run.
A chunk is durable once the ledger records it, whichever run claims and merges it.

A chunk has four durable stages, and one record for each:

    Range        ledger.reading.backfills  planned: a range of the key's order and the cursor in it
    ReadChunk    ledger.reading.chunks     read: its files are durable, its row is in the ledger
    Claim        formats.manifest          claimed: a batch has its high watermark, its rows and all the evidence
    ChunkResult  formats.merge_result      merged, or compared: what became of its rows

`ledger.reading.chunks.ChunkId` identifies a chunk: backfill, chunk and attempt. The watermarks in the stream
(`formats.watermark`) contain this id.
"""
