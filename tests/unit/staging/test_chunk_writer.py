"""A chunk's files have the bounds of its key, for each row group, as far as all readers order the key's type alike."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.formats.columns import chunk_schema
from tidemark.names import TableName
from tidemark.schema.table import Column, TableSchema
from tidemark.staging.chunk_writer import ChunkWriter
from tidemark.storage.store import Store

COLUMNS = {"id": "bigint", "name": "string", "weight": "double", "note": "string"}


def test_each_row_group_has_the_bounds_of_the_key(tmp_path: Path) -> None:
    columns = tuple(Column(name, target, 25, -1, target) for name, target in COLUMNS.items())
    schema = TableSchema(TableName("public", "t"), 1, 16384, "default", ("id", "name", "weight"), columns)
    writer = ChunkWriter(Store(str(tmp_path)), "chunk", schema)
    writer._writer._row_group_bytes = 1
    shape = chunk_schema(schema)
    for first in (0, 10):
        rows = [{"id": n, "name": f"n{n:02}", "weight": 0.5, "note": "a note"} for n in range(first, first + 10)]
        writer.write(pa.RecordBatch.from_pylist(rows, shape))
    (file,) = writer.finish()
    footer = pq.read_metadata(tmp_path / file.path)
    bounds = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        described = [group.column(n) for n in range(group.num_columns)]
        bounds.append(
            {
                column.path_in_schema: (column.statistics.min, column.statistics.max)
                for column in described
                if column.is_stats_set and column.path_in_schema in COLUMNS
            }
        )
    assert bounds == [{"id": (0, 9), "name": ("n00", "n09")}, {"id": (10, 19), "name": ("n10", "n19")}]
