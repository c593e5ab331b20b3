"""Where a batch ends: at a commit, and at which one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemark.capture.open_batch import HeldChanges, end_of_batch
from tidemark.config import Bounds
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.pgoutput.blocks import Commits, DecodedBlock, TableBlock
from tidemark.schema.table import TableSchema

SCHEMA = TableSchema(TableName("public", "t"), 1, 1, "default", (), ())


def block(commits: list[int], rows: dict[int, int]) -> DecodedBlock:
    """Commits by their LSN, each ending one byte later; `rows` are changes per commit
    LSN, open transactions included."""
    lsns = [lsn for lsn, count in sorted(rows.items()) for _ in range(count)]
    batch = pa.RecordBatch.from_arrays([pa.array(lsns, pa.int64())], names=["_commit_lsn"])
    at = np.array(commits, np.int64)
    return DecodedBlock(
        (TableBlock(SCHEMA, batch, {}, 0, 0, {}, (), ()),), Commits(at, at + 1, at.astype(np.uint32), at), ()
    )


def end(
    decoded: DecodedBlock,
    size: int = 1,
    *,
    rows_before: int = 0,
    size_before: int = 0,
    open_s: float = 0.0,
    heartbeat_commit: Lsn | None = None,
) -> int | None:
    held = HeldChanges(rows_before, size_before, open_s)
    bounds = Bounds(batch_rows=10, batch_bytes=100, batch_s=60)
    return end_of_batch(decoded, size, held, bounds=bounds, heartbeat_commit=heartbeat_commit)


def test_a_block_below_every_bound_does_not_end_it() -> None:
    assert end(block([10, 20], {10: 4, 20: 5})) is None


def test_it_ends_at_the_commit_whose_rows_reach_the_bound() -> None:
    assert end(block([10, 20, 30], {10: 4, 20: 6, 30: 1})) == 21
    assert end(block([10, 20, 30], {10: 4, 20: 5, 30: 1})) == 31
    assert end(block([10, 20, 30], {10: 1}), rows_before=10) == 11


def test_it_never_ends_inside_a_transaction() -> None:
    assert end(block([], {40: 1000}), rows_before=1000, size_before=1000, open_s=1000.0) is None
    assert end(block([10], {10: 1, 40: 1000})) is None


def test_it_ends_at_the_last_commit_of_the_block_that_passes_the_bound_of_bytes_or_time() -> None:
    decoded = block([10, 20, 30], {10: 1})
    assert end(decoded, size=100) == 31
    assert end(decoded, open_s=60.0) == 31
    assert end(decoded, size_before=100) == 11


def test_it_ends_at_the_heartbeat_even_where_a_later_commit_is_in() -> None:
    assert end(block([10, 20, 30], {}), heartbeat_commit=Lsn(20)) == 21
    assert end(block([10, 20, 30], {10: 10}), heartbeat_commit=Lsn(20)) == 11
    assert end(block([10], {}), heartbeat_commit=Lsn(20)) is None
