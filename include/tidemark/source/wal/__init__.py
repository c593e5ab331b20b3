"""Reads the replication slot and writes messages into the source's WAL."""
