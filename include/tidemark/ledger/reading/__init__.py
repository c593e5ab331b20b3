"""Stores backfills and verifications: ranges, chunks, cursors and proofs."""
