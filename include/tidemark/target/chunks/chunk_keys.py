"""Reads the keys of a batch's changes from its staged files. Chunk rows with these keys are merged one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tidemark.formats.manifest import Sweep
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.formats.snapshot import Snapshot
from tidemark.target.delta import hadoop_files
from tidemark.target.driver.arrow_columns import field_of

Keys = list[pa.ChunkedArray]


def changed_keys(session: SparkSession, lake: str, key: Sequence[str], batch: PlannedBatch) -> Iterator[Keys]:
    """Yield the keys of a batch's changes, in pieces. A change of the key yields both the old and the new key."""
    for rows in _read(session, lake, key, batch):
        yield from _keys_of(rows, key)


def keys_not_seen(
    session: SparkSession, lake: str, key: Sequence[str], batches: Sequence[PlannedBatch], sweep: Sweep
) -> Iterator[Keys]:
    """Yield the keys of those changes of the batches that the sweep's snapshot did not see."""
    snapshot = Snapshot.parse(sweep.snapshot)
    for batch in batches:
        for rows in _read(session, lake, [*key, "_xid"], batch):
            is_seen = pc.less(rows["_xid"], snapshot.xmax)
            if snapshot.in_progress:
                running = pa.array(snapshot.in_progress, pa.int64())
                is_seen = pc.and_(is_seen, pc.invert(pc.is_in(rows["_xid"], running)))
            yield from _keys_of(rows.filter(pc.invert(is_seen)), key)


def _read(session: SparkSession, lake: str, names: Sequence[str], batch: PlannedBatch) -> Iterator[pa.Table]:
    wanted = [*names, *(["_old_key"] if batch.moved else [])]
    for file in batch.files:
        with hadoop_files.open_to_read(session, f"{lake}/{file.path}", file.bytes) as opened:
            yield pq.ParquetFile(opened).read(columns=wanted)


def _keys_of(rows: pa.Table, key: Sequence[str]) -> Iterator[Keys]:
    yield [rows[name] for name in key]
    if "_old_key" in rows.column_names:
        old_keys = rows["_old_key"].combine_chunks()
        old_keys = old_keys.filter(old_keys.is_valid())
        yield [pa.chunked_array([field_of(old_keys, name)]) for name in key]
