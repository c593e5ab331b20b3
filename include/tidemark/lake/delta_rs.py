"""Implements the engine with delta-rs (the package `deltalake`): rows are Arrow tables, without Spark or Java.

Its SQL reads deletion vectors, its reader through pyarrow does not. So every row comes by a statement. DuckDB and
Polars take the Arrow tables as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tidemark.errors import DeltaRsMissing
from tidemark.lake.delta_schemas import columns_of
from tidemark.lake.dialects import DataFusionSql, Dialect
from tidemark.lake.engine import OpenedTable

ALL_ROWS = "tidemark_rows"


class DeltaRsEngine:
    """Reads Delta tables by delta-rs. `storage_options` are those of delta-rs, for a lake on an object store.
    Raises DeltaRsMissing."""

    def __init__(self, storage_options: Mapping[str, str] | None = None) -> None:
        try:
            import deltalake
        except ImportError:
            raise DeltaRsMissing() from None
        self._deltalake = deltalake
        self._options = dict(storage_options or {})
        self.dialect: Dialect = DataFusionSql()

    def open(self, path: str) -> OpenedTable | None:
        from deltalake.exceptions import TableNotFoundError

        uri = f"s3://{path.removeprefix('s3a://')}" if path.startswith("s3a://") else path
        try:
            table = self._deltalake.DeltaTable(uri, storage_options=self._options)
        except TableNotFoundError:
            return None
        return OpenedTable(path, int(table.version()), columns_of(table.schema().to_json()), table)

    def transaction(self, table: OpenedTable, application: str) -> int | None:
        version = table.handle.transaction_version(application)
        return None if version is None else int(version)

    def rows(self, table: OpenedTable) -> pa.Table:
        return self.frame(f"SELECT * FROM {ALL_ROWS}", {ALL_ROWS: table})

    def frame(self, statement: str, tables: Mapping[str, OpenedTable]) -> pa.Table:
        query = self._deltalake.QueryBuilder()
        for name, table in tables.items():
            query = query.register(name, table.handle)
        return _plain(pa.table(query.execute(statement).read_all()))

    def listed(self, statement: str, tables: Mapping[str, OpenedTable]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.frame(statement, tables).to_pylist()
        return rows


def _plain(rows: pa.Table) -> pa.Table:
    """Arrow's string type in place of DataFusion's string views, which not every library accepts."""
    return rows.cast(pa.schema([field.with_type(_plain_type(field.type)) for field in rows.schema]))


def _plain_type(of: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(of):
        return pa.string()
    if pa.types.is_binary_view(of):
        return pa.binary()
    if pa.types.is_list(of):
        return pa.list_(_plain_type(of.value_type))
    return pa.map_(_plain_type(of.key_type), _plain_type(of.item_type)) if pa.types.is_map(of) else of
