"""Reads the keys of a batch's changes from its staged files; chunk rows with these keys are judged one by one."""

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


def changed(session: SparkSession, lake: str, key: Sequence[str], batch: PlannedBatch) -> Iterator[Keys]:
    """The keys of a batch's changes, those before a change of the key too, in pieces."""
    for rows in _read(session, lake, key, batch):
        yield from _keys_of(rows, key)


def not_seen(
    session: SparkSession, lake: str, key: Sequence[str], batches: Sequence[PlannedBatch], sweep: Sweep
) -> Iterator[Keys]:
    """Those of the changes that the sweep's snapshot did not see."""
    snapshot = Snapshot.parse(sweep.snapshot)
    for batch in batches:
        for rows in _read(session, lake, [*key, "_xid"], batch):
            seen = pc.less(rows["_xid"], snapshot.xmax)
            if snapshot.in_progress:
                running = pa.array(snapshot.in_progress, pa.int64())
                seen = pc.and_(seen, pc.invert(pc.is_in(rows["_xid"], running)))
            yield from _keys_of(rows.filter(pc.invert(seen)), key)


def _read(session: SparkSession, lake: str, names: Sequence[str], batch: PlannedBatch) -> Iterator[pa.Table]:
    wanted = [*names, *(["_old_key"] if batch.moved else [])]
    for file in batch.files:
        with hadoop_files.open_to_read(session, f"{lake}/{file.path}", file.bytes) as opened:
            yield pq.ParquetFile(opened).read(columns=wanted)


def _keys_of(rows: pa.Table, key: Sequence[str]) -> Iterator[Keys]:
    yield [rows[name] for name in key]
    if "_old_key" in rows.column_names:
        before = rows["_old_key"].combine_chunks()
        before = before.filter(before.is_valid())
        yield [pa.chunked_array([field_of(before, name)]) for name in key]
