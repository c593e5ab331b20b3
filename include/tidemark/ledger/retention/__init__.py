"""Decides which staged files and ledger rows can be removed."""
