"""The transaction index: which tables each transaction touched, however its changes are spread over blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tidemark.staging.batch_writer import read_table
from tidemark.staging.transactions_file import TransactionIndex
from tidemark.storage.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def add(index: TransactionIndex, commits: list[int], changes: dict[str, list[int]]) -> None:
    """Commits named by their LSN; the transaction id is the LSN plus 1000."""
    lsns = np.array(commits, np.int64)
    index.add(lsns, lsns + 1000, lsns * 10, [(t, np.array(at, np.int64)) for t, at in changes.items()])


def read(store: Store, index: TransactionIndex) -> list[tuple[int, int, list[str]]]:
    file = index.finish()
    assert file is not None
    return [(r["xid"], r["commit_lsn"], r["tables"]) for r in read_table(store, file).to_pylist()]


def test_each_transaction_names_its_tables_once(store: Store) -> None:
    index = TransactionIndex(store, "t.parquet")
    add(index, [5, 7, 9], {"a": [5, 5, 9], "b": [5, 5, 5]})
    assert read(store, index) == [(1005, 5, ["a", "b"]), (1007, 7, []), (1009, 9, ["a"])]
    assert index.count == 3


def test_a_transaction_that_spans_blocks_keeps_the_tables_of_all(store: Store) -> None:
    index = TransactionIndex(store, "t.parquet")
    add(index, [5], {"a": [5, 9]})
    add(index, [], {"b": [9]})
    add(index, [9, 11], {"a": [9], "c": [11]})
    assert read(store, index) == [(1005, 5, ["a"]), (1009, 9, ["a", "b"]), (1011, 11, ["c"])]


def test_a_batch_that_touched_no_table_has_no_file(store: Store) -> None:
    index = TransactionIndex(store, "t.parquet")
    add(index, [5, 7], {})
    assert index.finish() is None
    assert index.count == 2
    assert not store.exists("t.parquet")


def test_many_transactions_are_written_in_pieces(store: Store) -> None:
    index = TransactionIndex(store, "t.parquet", row_group_rows=10)
    for i in range(100):
        add(index, [i], {"a": [i]})
    assert [lsn for _, lsn, _ in read(store, index)] == list(range(100))
