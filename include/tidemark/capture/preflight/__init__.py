"""Checks that a pipeline can run: source, ledger, lake and Spark."""
