"""Makes the table of types in docs/formats.md of the rows of `schema.postgres_types`.

`PYTHONPATH=include python -m sandbox.documents.types_table` prints it. A test compares them.
"""

from __future__ import annotations

import sys
from itertools import groupby
from typing import Final

from tidemark.schema.postgres_types import NUMERIC, POSTGRES_TYPES, PostgresType

_HEAD: Final = """\
| PostgreSQL | Delta | Parquet, as Arrow has it | in a key | a value that does not fit becomes |
|---|---|---|---|---|
"""
# What has no row of its own: it depends on modifiers, or on another type.
_BY_MODIFIERS: Final = (
    ("numeric(p,s), p ≤ 38, 0 ≤ s ≤ p", "decimal(p,s)", "decimal128(p, s)", "as it is", "NULL (NaN, infinity)"),
    (
        *("numeric otherwise", "string; `decimal(p,s)` on request", "string", "as it is"),
        "NULL (also digits beyond p or s that are not zero)",
    ),
    ("enum", "string", "string", "as it is", "as of text"),
)
_ARRAYS: Final = (
    *("one-dimensional array of the above", "array<T>", "list<T>", "as it is"),
    "NULL if its shape or lower bound is another; an unfit element as outside arrays",
)
_REST: Final = (
    ("domain", "as its base type", "", "", ""),
    (
        *("composite, range, multirange, geometry, every other type, and arrays of them", "string", "string"),
        *("as it is", "as of text"),
    ),
)


def document() -> str:
    """The table of types in docs/formats.md."""
    rows = [row for row in POSTGRES_TYPES if row is not NUMERIC]
    in_arrays, alone = _lines([r for r in rows if r.in_arrays]), _lines([r for r in rows if not r.in_arrays])
    lines = [*in_arrays, *_BY_MODIFIERS, _ARRAYS, *alone, *_REST]
    return _HEAD + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _lines(rows: list[PostgresType]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for target, of_target in groupby(rows, key=lambda row: row.target):
        names = ", ".join(row.sql_name if row.name == "char" else row.name for row in of_target)
        in_key = "as it is" if target.in_keys else "as text, since Spark does not compare it"
        unfit = "–" if target.codec == "array" else target.unfit or "–"
        lines.append((names, target.ddl, str(target.arrow).replace("item: ", ""), in_key, unfit))
    return lines


if __name__ == "__main__":
    sys.stdout.write(document())
