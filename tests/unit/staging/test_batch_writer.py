"""Staged files: bounded memory, bounded open files, sizes and checksums of the very bytes."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemark.formats.columns import staged_schema
from tidemark.names import TableName
from tidemark.schema.table import Column, TableSchema
from tidemark.staging.batch_writer import BatchWriter, read_table
from tidemark.storage.store import Store


def table(name: str, version: int = 1, columns: tuple[str, ...] = ("id",)) -> TableSchema:
    described = tuple(Column(c, "bigint", 20, -1, "bigint") for c in columns)
    return TableSchema(TableName("public", name), version, 1, "default", ("id",), described)


def rows(schema: TableSchema, first: int, count: int) -> pa.RecordBatch:
    arrow = staged_schema(schema)
    values = {field.name: pa.nulls(count, field.type) for field in arrow}
    numbers = pa.array(range(first, first + count), pa.int64())
    values |= {"_ordinal": numbers, "id": numbers, "_op": pa.array(["insert"] * count)}
    values["_commit_lsn"] = pa.array([7] * count, pa.int64())
    return pa.RecordBatch.from_arrays(list(values.values()), schema=arrow)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def test_a_stream_larger_than_every_bound_is_never_held_in_memory(store: Store) -> None:
    schema = table("orders")
    block = rows(schema, 0, 1000)
    writer = BatchWriter(store, "f", row_group_bytes=3 * block.nbytes, file_bytes=10**9)
    highest = 0
    for i in range(50):
        writer.write(schema, rows(schema, 1000 * i, 1000))
        highest = max(highest, writer.buffered_bytes)
    files = writer.finish()[schema.table]

    assert highest <= 3 * block.nbytes
    assert [f.rows for f in files] == [50_000]
    assert pq.ParquetFile(store.uri(files[0].path)).num_row_groups == 17
    assert read_table(store, files[0]).column("id").to_pylist() == list(range(50_000))


def test_tables_share_one_bound_and_the_largest_is_written_first(store: Store) -> None:
    schemas = [table(f"t{i}") for i in range(10)]
    block = rows(schemas[0], 0, 100)
    writer = BatchWriter(store, "f", row_group_bytes=10**9, buffer_bytes=5 * block.nbytes)
    for i in range(100):
        writer.write(schemas[i % 10], rows(schemas[i % 10], 100 * (i // 10), 100))
        assert writer.buffered_bytes <= 5 * block.nbytes
    for files in writer.finish().values():
        assert [n for f in files for n in read_table(store, f).column("id").to_pylist()] == list(range(1000))


def test_no_more_files_are_open_than_the_bound_says_and_order_is_kept(store: Store) -> None:
    schemas = [table(f"t{i}") for i in range(6)]
    writer = BatchWriter(store, "f", row_group_bytes=1, open_files=2)
    for turn in range(3):
        for schema in schemas:
            writer.write(schema, rows(schema, 10 * turn, 10))
    finished = writer.finish()
    for schema in schemas:
        files = finished[schema.table]
        assert [f.path for f in files] == [f"f/public.{schema.table.name}/v1-{n}.parquet" for n in (1, 2, 3)]
        assert [n for f in files for n in read_table(store, f).column("id").to_pylist()] == list(range(30))


def test_a_new_schema_version_begins_a_new_file_behind_the_old_one(store: Store) -> None:
    old, new = table("t"), table("t", 2, ("id", "more"))
    writer = BatchWriter(store, "f")
    writer.write(old, rows(old, 0, 5))
    writer.write(new, rows(new, 5, 5))
    files = writer.finish()[old.table]
    assert [(f.schema_version, f.rows) for f in files] == [(1, 5), (2, 5)]
    assert "more" not in read_table(store, files[0]).column_names
    assert "more" in read_table(store, files[1]).column_names


def test_a_file_ends_at_its_bound(store: Store) -> None:
    schema = table("t")
    writer = BatchWriter(store, "f", row_group_bytes=1, file_bytes=1)
    for i in range(3):
        writer.write(schema, rows(schema, i, 1))
    assert len(writer.finish()[schema.table]) == 3


def test_a_file_has_the_least_and_the_greatest_commit_time_of_its_changes(store: Store) -> None:
    schema = table("t")
    writer = BatchWriter(store, "f", row_group_bytes=1)
    minutes = [datetime(2026, 1, 1, 12, minute, tzinfo=UTC) for minute in (3, 5, 1, 2)]  # the clock was set back
    for first in (0, 2):
        block = rows(schema, first, 2)
        at = block.schema.get_field_index("_committed_at")
        writer.write(schema, block.set_column(at, "_committed_at", pa.array(minutes[first : first + 2])))
    for version, times in ((2, [None, None]), (2, minutes[:2]), (3, [minutes[0], None])):
        later = table("t", version)
        block = rows(later, 4, 2).set_column(at, "_committed_at", pa.array(times, pa.timestamp("us", "UTC")))
        writer.write(later, block)
    changed, *with_nulls = writer.finish()[schema.table]
    assert (changed.first_committed_at, changed.last_committed_at) == (
        "2026-01-01T12:01:00+00:00",
        "2026-01-01T12:05:00+00:00",
    )
    assert [(file.first_committed_at, file.last_committed_at) for file in with_nulls] == [(None, None)] * 2


def test_size_and_checksum_are_those_of_the_file(store: Store) -> None:
    schema = table("t")
    writer = BatchWriter(store, "f")
    writer.write(schema, rows(schema, 0, 1000))
    (file,) = writer.finish()[schema.table]
    content = store.read(file.path)
    assert (file.bytes, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_a_file_that_is_not_the_one_staged_is_refused(store: Store) -> None:
    schema = table("t")
    writer = BatchWriter(store, "f")
    writer.write(schema, rows(schema, 0, 1000))
    (file,) = writer.finish()[schema.table]
    content = bytearray(store.read(file.path))
    content[100] ^= 1
    store.write_atomic(file.path, bytes(content))
    with pytest.raises(ValueError, match="not the file that was staged"):
        read_table(store, file)
