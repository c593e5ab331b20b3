"""Reads from a Delta table's log its `TableShape`: the source's columns, the key, and the defaults of older rows.

Source: Delta protocol, "Schema Serialization Format". The key is the NOT NULL columns of `current` (docs/formats.md,
Target tables). A table without `current` has only inserts at the source, or its first merge died between its two
commits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidemark.lake.moments import Position
from tidemark.lsn import Lsn
from tidemark.names import CHANGE_COLUMNS, MARK_COLUMNS

# What the merge leaves in the metadata of a column of `history` that came with a default.
OLDER: Final = "tidemark.older"
# How the comment begins of a column that the source dropped.
DROPPED: Final = "Dropped at the source"

# Delta's own, of a table with column mapping.
PHYSICAL_NAME: Final = "delta.columnMapping.physicalName"

_DDL: Final = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
_OF_HISTORY: Final = frozenset((*CHANGE_COLUMNS, *MARK_COLUMNS))


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """`target` is the Delta type as DDL. Rows below `added_at` are older than the column: their value is `missing`,
    PostgreSQL's text. It is None if there are no such rows. If the column had another name, the `_unchanged` of
    older rows may contain that name."""

    name: str
    target: str
    nullable: bool = True
    added_at: Position | None = None
    missing: str | None = None
    is_dropped: bool = False
    may_be_renamed: bool = False


@dataclass(frozen=True, slots=True)
class TableShape:
    """`columns` are the source's columns, as `history` has them. A table without `key` is a multiset."""

    columns: tuple[LakeColumn, ...]
    key: tuple[str, ...]


def shape_of(history: Sequence[LakeColumn], current: Sequence[LakeColumn] | None) -> TableShape:
    """The shape of the source table that these two Delta tables belong to."""
    return shape_with(history, tuple(column.name for column in current or () if not column.nullable))


def shape_with(history: Sequence[LakeColumn], key: tuple[str, ...]) -> TableShape:
    """The shape of a table with this key. Without a key, dropped columns are left out, because they do not identify
    rows."""
    columns = (column for column in history if column.name not in _OF_HISTORY and (key or not column.is_dropped))
    return TableShape(tuple(columns), key)


def columns_of(schema_json: str) -> tuple[LakeColumn, ...]:
    """The columns in a `schemaString`."""
    return tuple(_column(field) for field in json.loads(schema_json)["fields"])


def _column(field: dict[str, Any]) -> LakeColumn:
    metadata, name = field.get("metadata", {}), field["name"]
    older = metadata.get(OLDER)
    if isinstance(older, str):
        older = json.loads(older)
    return LakeColumn(
        name,
        _ddl(field["type"]),
        field["nullable"],
        added_at=None if older is None else Position(older["generation"], Lsn(older["commit_lsn"])),
        missing=None if older is None else older["default"],
        is_dropped=metadata.get("comment", "").startswith(DROPPED),
        may_be_renamed=metadata.get(PHYSICAL_NAME, name) != name,
    )


def _ddl(of: Any) -> str:
    if isinstance(of, str):
        return _DDL.get(of, of)
    if of["type"] == "array":
        return f"array<{_ddl(of['elementType'])}>"
    if of["type"] == "map":
        return f"map<{_ddl(of['keyType'])},{_ddl(of['valueType'])}>"
    return str(of["type"])
