"""A table made wide: every change of (id, n, body, note) -> the same change with hundreds of columns of mixed types.

What a wide row holds follows from its narrow one, value by value: so any random workload of narrow rows, and its
model, judges wide tables too. `body` and `note` stay what can be unchanged, and the wide texts are unchanged with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from tests.target.lake import NOON, TEXTS, StagedTable, table_schema
from tests.target.model import Change, Row
from tidemark.schema.table import Identity, TableSchema

# Per type of a wide column the narrow column that it follows, and how.
KINDS: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("int", "n", lambda n: n),
    ("string", "body", lambda body: f"wide {body}"),
    ("decimal(12,2)", "n", lambda n: Decimal(25 * n).scaleb(-2)),
    ("double", "n", lambda n: -0.0 if n % 2 else n / 8),
    ("boolean", "n", lambda n: n % 3 == 0),
    ("date", "n", lambda n: date(2020, 1, 1) + timedelta(days=n)),
    ("timestamp", "n", lambda n: NOON + timedelta(seconds=n)),
    ("timestamp_ntz", "n", lambda n: datetime(2020, 1, 1) + timedelta(seconds=n)),
    ("binary", "note", lambda note: note.encode()),
    ("array<string>", "note", lambda note: [note, None]),
    ("array<double>", "n", lambda n: [0.0, -0.0, float(n)]),
    ("map<string,string>", "note", lambda note: [("k", note), ("l", None)]),
    ("string", "note", lambda note: f"wide {note}"),
    ("bigint", "n", lambda n: n * 10**9),
)


def _kind(number: int) -> tuple[str, str, Callable[[Any], Any]]:
    return KINDS[number % len(KINDS)]


def _columns(count: int) -> dict[str, int]:
    """The wide columns' names with their numbers, so many that the table has `count` columns."""
    return {f"c{number}": number for number in range(count - len(TEXTS))}


def widened(row: Row, columns: dict[str, int]) -> Row:
    def value(number: int) -> Any:
        _, narrow, of = _kind(number)
        return None if row.get(narrow) is None else of(row[narrow])

    return {**row, **{name: value(number) for name, number in columns.items()}}


def wide_schema(name: str, count: int, key: Sequence[str] = ("id",), identity: Identity = "default") -> TableSchema:
    types = {name: _kind(number)[0] for name, number in _columns(count).items()}
    return table_schema(name, {**TEXTS, **types}, key, identity)


@dataclass
class WideTable(StagedTable):
    """Stages narrow changes and chunks as wide ones."""

    columns: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.columns = _columns(len(self.schema.columns))

    def _row(self, change: Change, commit: int, ordinal: int, xid: int) -> Row:
        unchanged = {n for n, number in self.columns.items() if _kind(number)[1] in change.unchanged}
        row = widened(change.row, self.columns) if change.row else change.row
        old = None if change.old is None else widened(change.old, self.columns)
        wide = replace(change, row=row, unchanged=(*change.unchanged, *sorted(unchanged)), old=old)
        return super()._row(wide, commit, ordinal, xid)

    def stage_chunk(self, backfill: str, chunk: str, rows: Sequence[Row], *, snapshot: str, low: int) -> Any:
        wide = [widened(row, self.columns) for row in rows]
        return super().stage_chunk(backfill, chunk, wide, snapshot=snapshot, low=low)

    def expected(self, rows: Sequence[Row]) -> list[list[tuple[str, str]]]:
        """Narrow rows -> what `exactly` says of the wide ones that `Lake.current` gives back."""
        maps = {c.name for c in self.schema.columns if c.target.startswith("map")}
        wide = [widened(row, self.columns) for row in rows]
        return exactly([{n: dict(v) if n in maps and v is not None else v for n, v in row.items()} for row in wide])


def exactly(rows: Sequence[Row]) -> list[list[tuple[str, str]]]:
    """Per row its names and values as texts, in which -0.0 differs from 0.0; in the texts' order."""
    return sorted([(name, _text(value)) for name, value in row.items()] for row in rows)


def _text(value: Any) -> str:
    in_utc = value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value
    return repr(in_utc)
