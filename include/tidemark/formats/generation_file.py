"""Defines generation.json, which records the start of a generation: `GenerationFile`. Pure.

Written before the ledger's row, and never deleted while the pipeline exists: with the manifests it rebuilds a ledger
that was lost or restored from an older copy. Its number is never reused, because it is part of the names of the Delta
tables' transactions (R5). Pure: reading and writing the JSON is `storage.store`'s business.
"""

from __future__ import annotations

from typing import ClassVar

from tidemark.formats.error_record import ErrorFacts
from tidemark.formats.json_file import JsonFile
from tidemark.lsn import Lsn


class GenerationFile(JsonFile, frozen=True):
    """`backfill_kind` is set where changes may lie between this generation and the one before; `error` is the one that
    said so. `tables` are those alone that differ, each with the keys that do, as texts that PostgreSQL reads, or None
    where any row may; without it, that is every table. `history` is that of the source's timeline."""

    KIND: ClassVar[str] = "generation.json"

    pipeline: str
    number: int
    system_identifier: str
    timeline: int
    slot: str
    start_lsn: Lsn
    opened_at: str
    reason: str
    backfill_kind: str | None = None
    error: ErrorFacts | None = None
    history: str | None = None
    tables: dict[str, tuple[tuple[str, ...], ...] | None] | None = None

    def __repr__(self) -> str:
        """Without `tables`, whose keys are values of rows."""
        return f"GenerationFile(pipeline={self.pipeline!r}, number={self.number}, start_lsn={self.start_lsn!r})"
