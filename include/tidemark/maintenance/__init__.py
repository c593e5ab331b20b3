"""Removes old staging and ledger rows (`staging_cleanup`), compacts Delta tables (`compaction_runs`), and replays
tables.
"""
