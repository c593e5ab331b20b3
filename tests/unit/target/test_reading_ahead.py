"""Who has the changes that were read ahead, and who the driver's memory."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import pyarrow as pa
import pytest

from tidemark.errors import StagedFileDiffers
from tidemark.formats.plan import PlannedBatch, PlannedFile
from tidemark.lsn import Lsn
from tidemark.schema.table import Column, TableName, TableSchema
from tidemark.target import plain_changes
from tidemark.target.plain_changes import Staged
from tidemark.target.reading_ahead import ReadAhead
from tidemark.target.target_rows import TooMuch

COLUMNS = tuple(Column(name, "int", 23, -1, "int") for name in ("id", "n"))
SCHEMA = TableSchema(TableName("public", "t"), 1, 16384, "default", ("id",), COLUMNS)
WIDER = replace(SCHEMA, columns=(COLUMNS[0], replace(COLUMNS[1], target="bigint")))
FILE = PlannedFile("staged.parquet", 1, 10, "ab", 1)
BATCHES = (PlannedBatch(Lsn(1), Lsn(9), (FILE,), 0, 0, 0),)
OTHERS = (replace(BATCHES[0], files=(replace(FILE, sha256="cd"),)),)
CHANGES = Staged(SCHEMA, BATCHES, pa.table({"id": [1]}), None)  # type: ignore[arg-type]


@pytest.fixture
def ahead() -> Iterator[ReadAhead]:
    plain_changes.reserve_memory()
    read: Future[Staged] = Future()
    read.set_result(CHANGES)
    ahead = ReadAhead(SCHEMA, BATCHES, read)
    yield ahead
    ahead.let_go()


def memory_is_free() -> bool:
    try:
        plain_changes.reserve_memory()
    except TooMuch:
        return False
    plain_changes.free_memory()
    return True


def test_the_memory_goes_with_the_changes_to_who_asks_for_these(ahead: ReadAhead) -> None:
    version, batches = replace(SCHEMA, version=7), [replace(BATCHES[0], end_lsn=Lsn(10))]
    taken = ahead.take(version, batches)
    assert taken is not None
    assert taken.changes is CHANGES.changes
    assert (taken.schema, taken.batches) == (version, batches)
    ahead.let_go()
    assert not memory_is_free()
    assert ahead.take(SCHEMA, BATCHES) is None
    assert not memory_is_free()
    plain_changes.free_memory()


@pytest.mark.parametrize(
    ("schema", "batches"),
    [(SCHEMA, OTHERS), (SCHEMA, ()), (WIDER, BATCHES), (replace(SCHEMA, key=("id", "n")), BATCHES)],
    ids=["another file", "no file", "another type", "another key"],
)
def test_whoever_asks_for_others_reads_them_and_finds_the_memory_free(
    ahead: ReadAhead, schema: TableSchema, batches: tuple[PlannedBatch, ...]
) -> None:
    assert ahead.take(schema, batches) is None
    assert memory_is_free()
    assert ahead.take(SCHEMA, BATCHES) is None


def test_what_reading_raised_is_raised_where_the_changes_are_asked_for() -> None:
    plain_changes.reserve_memory()
    read: Future[Staged] = Future()
    read.set_exception(StagedFileDiffers(path="staged.parquet", table="public.t"))
    ahead = ReadAhead(SCHEMA, BATCHES, read)
    with pytest.raises(StagedFileDiffers):
        ahead.take(SCHEMA, BATCHES)
    assert not memory_is_free()
    ahead.let_go()
    assert memory_is_free()
