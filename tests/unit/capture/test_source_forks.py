"""The keys of lost rows, as texts that PostgreSQL reads, or none where that is not certain."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidemark.capture.continuity import source_forks
from tidemark.formats.columns import staged_schema
from tidemark.names import TableName
from tidemark.schema.table import Column, TableSchema

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
