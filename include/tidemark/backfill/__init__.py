"""What a backfill does before and after the stages that it shares with capture: planning, reading of ranges chunk by
chunk, reporting, and what asks for one (`wanted`).

Between reading and reporting come the drain, the merge and the confirmation of `tidemark.capture`, the same that every
run has: a chunk is durable once it is recorded in the ledger, whoever claims and merges it.

A chunk has four durable stages, and one record for each:

    Range        ledger.backfills  planned: the stretch of the key's order that it will be read of, and how far that is
    ReadChunk    ledger.chunks     read: its files are durable, its row is in the ledger
    Claim        formats.manifest  claimed: a batch has its high watermark, and so its rows and all the evidence
    ChunkResult  formats.result    merged, or compared: what became of its rows

Elsewhere it goes by its id alone, `ledger.chunks.ChunkId`: backfill, chunk and attempt. The watermarks in the stream
(`formats.watermark`) carry it; a chunk that is read again is its id with a reason.
"""
