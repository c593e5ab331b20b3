"""Defines every file and message that outlives the process that wrote it, and its path: one module each, pure.

What is written here is read by another task, another version or another machine, so `docs/formats.md` describes exactly
these modules. They import nothing of the library but `lsn`, `names` and `schema`, and everybody may import them.
"""
