"""Defines every file and message that outlives the process that wrote it, and its path: one module each, pure.

Another task, version or machine reads these files, so `docs/formats.md` describes exactly these modules. They import
only `lsn`, `names`, `schema`, `errors` and `strict_json` of the library; every module may import them.
"""
