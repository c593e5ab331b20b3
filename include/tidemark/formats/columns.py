"""Defines the Arrow schemas of staged files, of chunks, and of the rows of `current`: `TableSchema` -> `pa.Schema`.

Metadata first, then the source's columns, then what only some tables have:

| column | type | holds |
|---|---|---|
| `_generation` | int32 | slot generation |
| `_commit_lsn` | int64 | LSN of the commit record |
| `_ordinal` | int64 | index of the change among all changes of its transaction, those of other tables included |
| `_xid` | int64 | id of the top-level transaction |
| `_committed_at` | timestamp(us, UTC) | commit time at the source |
| `_op` | string | insert, update, delete, truncate |
| the source's columns | `arrow_type(target)` | the new row; of a delete the key alone; of a truncate nothing |
| `_old_key` | struct of the key columns | the key before, NULL unless it changed (keyed tables) |
| `_unchanged` | list of string | columns whose TOAST value was not sent: NULL in their column, and not NULL in truth |
| `_text` | map of string to string | column to PostgreSQL's text of a value that the target type cannot hold (R8) |
| `_old` | struct of all columns | the whole old row of an update or delete (tables without key under FULL) |

In `_text` the name of a column of `_old_key` has OLD_KEY_PREFIX before it, one of an update's `_old` OLD_PREFIX.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from tidemark.names import CHANGE_COLUMNS, MARK_COLUMNS, ROW_COLUMNS, ROW_HOLES
from tidemark.schema.delta_types import arrow_type
from tidemark.schema.table import TableSchema

OPERATIONS: Final = ("insert", "update", "delete", "truncate")


def staged_schema(schema: TableSchema) -> pa.Schema:
    """Every column is nullable: a truncate has no key, a mask no value."""
    source = [pa.field(c.name, arrow_type(c.target)) for c in schema.columns]
    by_name = {field.name: field for field in source}
    fields = [*_metadata(CHANGE_COLUMNS), *source]
    if schema.key:
        fields.append(pa.field("_old_key", pa.struct([by_name[name] for name in schema.key])))
    fields += _metadata(MARK_COLUMNS)
    if schema.is_multiset:
        fields.append(pa.field("_old", pa.struct(source)))
    return pa.schema(fields)


def chunk_schema(schema: TableSchema) -> pa.Schema:
    """The Arrow schema of a chunk's files: the source's columns as the snapshot saw them, and `_text`, as above."""
    source = [pa.field(c.name, arrow_type(c.target)) for c in schema.columns]
    return pa.schema([*source, *_metadata({"_text": MARK_COLUMNS["_text"]})])


def row_schema(schema: TableSchema) -> pa.Schema:
    """The Arrow schema of current's rows, of a table with a key."""
    source = [pa.field(c.name, arrow_type(c.target)) for c in schema.columns]
    return pa.schema([*source, *_metadata(ROW_COLUMNS), pa.field(ROW_HOLES, pa.list_(pa.string()))])


def _metadata(columns: Mapping[str, str]) -> list[pa.Field]:
    return [pa.field(name, arrow_type(target)) for name, target in columns.items()]
