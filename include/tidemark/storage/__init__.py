"""Reads and writes files below the lake root: on a local disk or in an object store."""
