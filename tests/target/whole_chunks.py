"""Rows, chunks and transactions of the tests of whole chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from tests.target.lake import StagedTable
from tests.target.model import Change, Row
from tidemark.formats.manifest import Claim
from tidemark.lsn import Lsn


def full(key: Any, **values: Any) -> Row:
    """A chunk's row."""
    return {"id": key, "n": 0, "body": f"body of {key}", "note": "c", "_text": None, **values}


def read(table: StagedTable, number: str, rows: Sequence[Row], snapshot: str = "100:100:") -> Claim:
    return table.stage_chunk("b1", number, rows, snapshot=snapshot, low=table.next_lsn())


def marked(table: StagedTable, claim: Claim) -> Claim:
    return replace(claim, watermark_lsn=Lsn(table.next_lsn()))


def commit(table: StagedTable, xid: int, *changes: Change) -> tuple[int, int, list[Change]]:
    return table.next_lsn(), xid, list(changes)


def row_of(table: StagedTable, key: int, n: int, **values: Any) -> Row:
    """A row of a table whose first two columns were `id` and `n`, whatever they are called."""
    names = [column.name for column in table.schema.columns[:2]]
    return {**full(key), **dict(zip(names, (key, n), strict=True)), **values}
