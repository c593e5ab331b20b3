"""What keeps a pipeline small for years: staging and ledger rows that nothing needs any more are removed (`retiring`),
and Delta tables are compacted and cleaned (`upkeep`).
"""
