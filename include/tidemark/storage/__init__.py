"""Reads and writes files below the lake root: on a local disk, in an object store, or through fsspec."""
