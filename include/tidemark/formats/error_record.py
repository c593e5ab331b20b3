"""Defines the record of an error that travels: application -> result.json -> ledger -> messages and status. Pure.

The exception stays in the process that raised it. `errors.TidemarkError` converts itself to a record.
"""

from __future__ import annotations

from tidemark.strict_json import JsonRecord


class ErrorRecord(JsonRecord, frozen=True):
    """`kind` is the name of a leaf of `errors`, `move` the value of its `Move`, `message` its text, remedy included and
    no row's value."""

    kind: str
    move: str
    message: str


class ErrorFacts(JsonRecord, frozen=True):
    """An error that another process shall raise: `kind` as above, `facts` what its message names, as text."""

    kind: str
    facts: dict[str, str]
