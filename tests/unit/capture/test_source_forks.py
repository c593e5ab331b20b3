"""The keys of lost rows, as texts that PostgreSQL reads, or none where that is not certain; and damaged files."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from tests.support.manifests import manifest_of, path_of
from tidemark.capture.continuity import source_forks
from tidemark.formats.columns import staged_schema
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.schema.table import Column, TableSchema
from tidemark.staging.transactions_file import TransactionIndex
from tidemark.storage.store import Store

DATED = TableSchema(
    table=TableName("public", "dated"),
    version=1,
    relation_oid=1,
    identity="default",
    key=("at",),
    columns=(Column("at", "date", 1082, -1, "date"),),
)


def lost(at: int, before: int | None = None) -> pa.Table:
    """A change of a row with this day since 1970 as its key, which was another one before."""
    rows = {
        name: pa.nulls(1, of.type) for name, of in zip(staged_schema(DATED).names, staged_schema(DATED), strict=True)
    }
    old = staged_schema(DATED).field("_old_key").type
    rows["at"] = pa.array([at], pa.date32())
    rows["_op"] = pa.array(["update"])
    if before is not None:
        rows["_old_key"] = pa.StructArray.from_arrays([pa.array([before], pa.date32())], fields=[*old])
    return pa.table(rows)


def test_a_key_is_told_as_it_is_now_and_as_it_was() -> None:
    assert list(source_forks._keys_of(DATED, lost(0, before=1))) == [("1970-01-01",), ("1970-01-02",)]


@pytest.mark.parametrize("rows", [lost(3_000_000), lost(-800_000), lost(0, before=3_000_000)])
def test_a_day_that_python_does_not_know_has_the_table_read_as_a_whole(rows: pa.Table) -> None:
    with pytest.raises(source_forks._KeysUnknown):
        list(source_forks._keys_of(DATED, rows))


def damaged(content: bytes) -> dict[str, bytes]:
    """The file cut short, and overwritten where its values and its footer are, as a Parquet reader meets them."""
    return {
        "nothing in it": b"",
        "cut short": content[: len(content) // 2],
        "other values": content[:4] + bytes(200) + content[204:],
        "another footer": content[:-60] + b"\xff" * 40 + content[-20:],
    }


@pytest.mark.parametrize("how", ["whole", *damaged(b"")])
def test_a_damaged_file_of_transactions_is_as_good_as_none(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, index = Store(str(tmp_path)), TransactionIndex(Store(str(tmp_path)), "transactions.parquet")
    lsns = np.arange(100, 1100)
    index.add(lsns, lsns + 1, lsns, [("public.item", lsns)])
    manifest = replace(manifest_of(100, 1100), transactions=index.finish())
    store.write_new(path_of(manifest), manifest.to_json().encode())
    if how != "whole":
        (tmp_path / "transactions.parquet").write_bytes(damaged(store.read("transactions.parquet"))[how])
    generation = Mock(number=1, staged_lsn=Lsn(1100))
    batch = Mock(start_lsn=Lsn(100), end_lsn=Lsn(1100), manifest=path_of(manifest))
    monkeypatch.setattr(source_forks.batches, "after", lambda *_: [batch])
    found = source_forks.lost_part(Mock(), store, generation, Lsn(100))
    assert (found and found.transactions.num_rows) == (1000 if how == "whole" else None)
