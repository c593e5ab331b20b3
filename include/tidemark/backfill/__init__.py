"""What a backfill does before and after the stages that it shares with capture: planning, reading of ranges chunk by
chunk, reporting, and what asks for one (`wanted`).

Between reading and reporting come the drain, the merge and the confirmation of `tidemark.capture`, the same that every
run has: a chunk is durable once it is recorded in the ledger, whoever claims and merges it.
"""
