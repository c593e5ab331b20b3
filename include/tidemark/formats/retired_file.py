"""Defines retired.json, which records how far a generation's staging was removed: `RetiredFile`. Pure.

It is written after the ledger's marks and before the first deletion, and only moves forward. A restored or rebuilt
ledger reads from it which batches were removed. Every batch that ends at or below `up_to` is applied to every table,
except for the tables in `kept`, which still have unapplied batches or evidence of an open backfill. Pure: reading and
writing the JSON is `storage.store`'s business.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from tidemark.formats.json_file import JsonFile
from tidemark.lsn import Lsn


class RetiredFile(JsonFile, frozen=True):
    """`max_xid` is the highest transaction id of what was retired, None if that held no change: a snapshot whose
    xmin is not above it may need what is gone. `kept` are tables that keep files below `up_to`.
    `unfit` counts by table and column the values that did not fit their Delta type, of all that was staged by then."""

    KIND: ClassVar[str] = "retired.json"

    pipeline: str
    generation: int
    up_to: Lsn
    max_xid: int | None
    kept: tuple[str, ...] = ()
    unfit: dict[str, dict[str, int]] = field(default_factory=dict)
