"""Reads the staged changes of batches into one Arrow table, with the columns of the newest version, in R1 order.

A file of an older schema version lacks columns that were added later. They become NULL, or get the default of older
rows (`Column.missing`). Such a file may also have older names of columns, in its marks too. Before a file is decoded,
its size and SHA-256 are compared with the manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tidemark.errors import StagedFileDiffers
from tidemark.formats.columns import staged_schema
from tidemark.formats.manifest import StagedFile
from tidemark.names import CHANGE_COLUMNS, MARK_COLUMNS, ORDER_COLUMNS
from tidemark.schema.table import TableSchema
from tidemark.target.delta import hadoop_files
from tidemark.target.driver.arrow_columns import in_shape
from tidemark.target.driver.key_set import KeySet
from tidemark.target.merge_choice import Declined
from tidemark.target.spark.staged_changes import PREFIXES, missing_scalar

_OLD_KEY: Final = "_old_key"


@dataclass(frozen=True, slots=True)
class StagedTable:
    """Locates a table's staged files of one generation. `schemas` are the schema versions of the files; the last one is
    the target's."""

    session: SparkSession
    lake: str
    schemas: Sequence[TableSchema]
    generation: int

    @property
    def schema(self) -> TableSchema:
        """The schema version of the target."""
        return self.schemas[-1]

    def open(self, file: StagedFile) -> BinaryIO:
        """Open one of the files for reading at any position."""
        return hadoop_files.open_to_read(self.session, f"{self.lake}/{file.path}", file.bytes)

    def read(self, file: StagedFile, names: Sequence[str]) -> pa.Table:
        """These columns of all rows of a file."""
        with self.open(file) as opened:
            return pq.ParquetFile(opened).read(columns=list(names))


def read_changes(
    table: StagedTable,
    files: Sequence[StagedFile],
    most_bytes: int,
    *,
    moved: bool = False,
    only: KeySet | None = None,
) -> pa.Table:
    """Read the changes of these files, of all keys or of the keys `only`, with `_old_key` if keys `moved`.

    Raises StagedFileDiffers, and Declined if the decoded files exceed `most_bytes`.
    """
    newest = table.schema
    shape = change_shape(newest, moved=moved)
    versions = {schema.version: schema for schema in table.schemas}
    missing = {c.name: missing_scalar(c) for c in newest.columns if c.missing is not None}
    tables = [shape.empty_table()]
    bytes_left = most_bytes
    for file in files:
        version = versions[file.schema_version]
        wanted = change_shape(version, moved=moved).names
        content = hadoop_files.read_whole(table.session, f"{table.lake}/{file.path}", file.bytes)
        if (len(content), hashlib.sha256(content).hexdigest()) != (file.bytes, file.sha256):
            raise StagedFileDiffers(path=file.path, table=str(newest.table))
        parquet = pq.ParquetFile(pa.BufferReader(content))
        bytes_left -= sum(parquet.metadata.row_group(n).total_byte_size for n in range(parquet.num_row_groups))
        if bytes_left < 0:
            raise Declined("the changes are too large for the driver's memory")
        read = parquet.read(columns=[name for name in wanted if name in parquet.schema_arrow.names])
        rows = _aligned(with_newest_names(version, read, newest), shape, missing)
        tables.append(rows if only is None else rows.filter(only.holds([rows[k] for k in newest.key])))
    return in_order(pa.concat_tables(tables))


def change_shape(schema: TableSchema, *, moved: bool = False) -> pa.Schema:
    """The columns that history has of a change; with `moved`, also `_old_key`."""
    staged = staged_schema(schema)
    names = [*CHANGE_COLUMNS, *(c.name for c in schema.columns), *MARK_COLUMNS]
    return pa.schema([staged.field(name) for name in ([*names, _OLD_KEY] if moved else names)])


def in_order(changes: pa.Table) -> pa.Table:
    """Sort changes in R1 order. A drain's files are sorted already. Two rows of one change keep their order."""
    lsn, ordinal = (changes[name].to_numpy() for name in ORDER_COLUMNS)
    is_behind = (lsn[1:] > lsn[:-1]) | ((lsn[1:] == lsn[:-1]) & (ordinal[1:] >= ordinal[:-1]))
    if is_behind.all():
        return changes
    order = [(name, "ascending") for name in ORDER_COLUMNS]
    return changes.take(pc.sort_indices(changes.select([*ORDER_COLUMNS]), order))


def with_newest_names(version: TableSchema, rows: pa.Table, newest: TableSchema) -> pa.Table:
    """Rename the columns of a version's staged rows to their newest names, in the marks too.

    Columns that the newest version does not have are removed.
    """
    names: dict[str, str] = {}
    for column in newest.columns:
        own = newest.column_in(version, column)
        if own is not None:
            names[own.name] = column.name
    own_names = {column.name for column in version.columns}
    if all(names.get(name) == name for name in own_names):
        return rows
    kept = [name for name in rows.column_names if name not in own_names or name in names]
    rows = rows.select(kept).rename_columns([names.get(name, name) if name in own_names else name for name in kept])
    if _OLD_KEY in rows.column_names:
        keys = rows[_OLD_KEY].combine_chunks()
        fields = [names.get(field.name, field.name) for field in keys.type]
        renamed = pa.StructArray.from_arrays(keys.flatten(), fields, mask=keys.is_null())
        rows = rows.set_column(rows.column_names.index(_OLD_KEY), _OLD_KEY, renamed)
    return _rename_in_marks(rows, {before + own: before + name for own, name in names.items() for before in PREFIXES})


def _rename_in_marks(rows: pa.Table, names: Mapping[str, str]) -> pa.Table:
    """Replace column names in the marks of the rows (`_unchanged` and `_text`)."""
    unchanged, texts = rows["_unchanged"], rows["_text"]
    if unchanged.null_count < rows.num_rows:
        lists = [m if m is None else [names.get(name, name) for name in m] for m in unchanged.to_pylist()]
        at = rows.column_names.index("_unchanged")
        rows = rows.set_column(at, "_unchanged", pa.array(lists, unchanged.type))
    if texts.null_count < rows.num_rows:
        maps = [m if m is None else [(names.get(name, name), text) for name, text in m] for m in texts.to_pylist()]
        rows = rows.set_column(rows.column_names.index("_text"), "_text", pa.array(maps, texts.type))
    return rows


def _aligned(rows: pa.Table, shape: pa.Schema, missing: Mapping[str, pa.Scalar]) -> pa.Table:
    """Give the rows the target's columns. A column that an older version lacks is NULL or its default in `missing`."""
    added = [name for name in missing if name not in rows.column_names]
    is_row = pc.is_in(rows["_op"], pa.array(["insert", "update"])) if added else None
    for name in added:
        values = pc.if_else(is_row, missing[name], pa.scalar(None, shape.field(name).type))
        rows = rows.append_column(name, values)
    return in_shape(rows, shape)
