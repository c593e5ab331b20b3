"""Reads the keys of a batch's changes from its staged files. Chunk rows with these keys are merged one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.formats.columns import chunk_schema
from tidemark.formats.manifest import StagedFile, Sweep
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.formats.snapshot import Snapshot
from tidemark.schema.table import TableSchema
from tidemark.target.driver.arrow_columns import field_of
from tidemark.target.driver.change_reader import StagedTable

Keys = list[pa.ChunkedArray]


def key_types(schema: TableSchema) -> list[pa.DataType]:
    """The types of the key's columns, in which chunks have them."""
    shape = chunk_schema(schema)
    return [shape.field(name).type for name in schema.key]


def keys_in(table: StagedTable, file: StagedFile) -> Keys:
    """The keys of a chunk's file."""
    rows = table.read(file, table.schema.key)
    return [rows[name] for name in table.schema.key]


def changed_keys(table: StagedTable, batches: Iterable[PlannedBatch]) -> Iterator[Keys]:
    """Yield the keys of the batches' changes, in pieces. A change of the key yields both the old and the new key."""
    for batch in batches:
        for rows in _read(table, table.schema.key, batch):
            yield from _keys_of(rows, table.schema.key)


def keys_not_seen(table: StagedTable, batches: Iterable[PlannedBatch], sweep: Sweep) -> Iterator[Keys]:
    """Yield the keys of those changes of the batches that the sweep's snapshot did not see."""
    snapshot, key = Snapshot.parse(sweep.snapshot), table.schema.key
    for batch in batches:
        for rows in _read(table, [*key, "_xid"], batch):
            is_seen = pc.less(rows["_xid"], snapshot.xmax)
            if snapshot.in_progress:
                running = pa.array(snapshot.in_progress, pa.int64())
                is_seen = pc.and_(is_seen, pc.invert(pc.is_in(rows["_xid"], running)))
            yield from _keys_of(rows.filter(pc.invert(is_seen)), key)


def _read(table: StagedTable, names: Sequence[str], batch: PlannedBatch) -> Iterator[pa.Table]:
    for file in batch.files:
        yield table.read(file, [*names, *(["_old_key"] if batch.moved else [])])


def _keys_of(rows: pa.Table, key: Sequence[str]) -> Iterator[Keys]:
    yield [rows[name] for name in key]
    if "_old_key" in rows.column_names:
        old_keys = rows["_old_key"].combine_chunks()
        old_keys = old_keys.filter(old_keys.is_valid())
        yield [pa.chunked_array([field_of(old_keys, name)]) for name in key]
