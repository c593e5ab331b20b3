"""Who has the changes that were read ahead, and who the driver's memory."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs

from tidemark.errors import StagedFileDiffers
from tidemark.formats.manifest import StagedFile
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.lsn import Lsn
from tidemark.schema.table import Column, TableName, TableSchema
from tidemark.target.driver import driver_memory
from tidemark.target.driver.driver_fold import NewestChanges
from tidemark.target.driver.prefetch import ReadAhead, reading_ahead
from tidemark.target.merge_choice import Declined

COLUMNS = tuple(Column(name, "int", 23, -1, "int") for name in ("id", "n"))
SCHEMA = TableSchema(TableName("public", "t"), 1, 16384, "default", ("id",), COLUMNS)
WIDER = structs.replace(SCHEMA, columns=(COLUMNS[0], structs.replace(COLUMNS[1], target="bigint")))
FILE = StagedFile("staged.parquet", 1, 10, "ab", 1)
BATCHES = (PlannedBatch(Lsn(1), Lsn(9), (FILE,), 0, 0, 0),)
OTHERS = (structs.replace(BATCHES[0], files=(structs.replace(FILE, sha256="cd"),)),)
CHANGES = NewestChanges(pa.table({"id": [1]}), None, None, pa.array([0]), (), np.ones(1, np.bool_), truncated=False)


@pytest.fixture
def ahead() -> Iterator[ReadAhead]:
    driver_memory.reserve()
    read: Future[NewestChanges] = Future()
    read.set_result(CHANGES)
    ahead = ReadAhead(SCHEMA, BATCHES, read)
    yield ahead
    ahead.let_go()


def memory_is_free() -> bool:
    try:
        driver_memory.reserve()
    except Declined:
        return False
    driver_memory.free()
    return True


@pytest.fixture
def memory() -> Iterator[None]:
    """The driver's, reserved for the test's table; free afterwards, whatever became of it."""
    driver_memory.reserve()
    yield
    if not memory_is_free():
        driver_memory.free()


def test_the_memory_goes_with_the_changes_to_who_asks_for_these(ahead: ReadAhead) -> None:
    version, batches = (
        structs.replace(SCHEMA, version=7),
        [structs.replace(BATCHES[0], end_lsn=Lsn(10))],
    )
    taken = ahead.take(version, batches)
    assert taken is not None
    assert taken.changes is CHANGES.changes
    ahead.let_go()
    assert not memory_is_free()
    assert ahead.take(SCHEMA, BATCHES) is None
    assert not memory_is_free()
    driver_memory.free()


@pytest.mark.parametrize(
    ("schema", "batches"),
    [(SCHEMA, OTHERS), (SCHEMA, ()), (WIDER, BATCHES), (structs.replace(SCHEMA, key=("id", "n")), BATCHES)],
    ids=["another file", "no file", "another type", "another key"],
)
def test_whoever_asks_for_others_reads_them_and_finds_the_memory_free(
    ahead: ReadAhead, schema: TableSchema, batches: tuple[PlannedBatch, ...]
) -> None:
    assert ahead.take(schema, batches) is None
    assert memory_is_free()
    assert ahead.take(SCHEMA, BATCHES) is None


def test_what_reading_raised_is_raised_where_the_changes_are_asked_for() -> None:
    driver_memory.reserve()
    read: Future[NewestChanges] = Future()
    read.set_exception(StagedFileDiffers(path="staged.parquet", table="public.t"))
    ahead = ReadAhead(SCHEMA, BATCHES, read)
    with pytest.raises(StagedFileDiffers):
        ahead.take(SCHEMA, BATCHES)
    assert not memory_is_free()
    ahead.let_go()
    assert memory_is_free()


@pytest.mark.parametrize(
    "use",
    [ReadAhead.let_go, lambda ahead: ahead.take(SCHEMA, OTHERS), lambda ahead: ahead.take(SCHEMA, BATCHES)],
    ids=["nobody asks", "others are asked for", "taken and dropped"],
)
@pytest.mark.usefixtures("memory")
def test_changes_that_nobody_has_a_use_for_any_more_take_no_memory(use: Callable[[ReadAhead], object]) -> None:
    read: Future[NewestChanges] = Future()
    read.set_result(replace(CHANGES, changes=pa.table({"id": [2]})))
    changes = weakref.ref(read.result().changes)
    ahead = ReadAhead(SCHEMA, BATCHES, read)
    del read
    use(ahead)
    assert changes() is None


@pytest.mark.usefixtures("memory")
def test_what_reading_raised_is_forgotten_too_with_all_that_was_read_until_then() -> None:
    read: Future[NewestChanges] = Future()
    failure = StagedFileDiffers(path="staged.parquet", table="public.t")
    read.set_exception(failure)
    raised = weakref.ref(failure)
    ahead = ReadAhead(SCHEMA, BATCHES, read)
    del failure, read
    with suppress(StagedFileDiffers):
        ahead.take(SCHEMA, BATCHES)
    assert raised() is None
    assert not memory_is_free()
    ahead.let_go()
    assert memory_is_free()


def test_neither_thread_nor_block_keeps_the_changes() -> None:
    read = []
    forgotten = threading.Event()

    def newest() -> NewestChanges:
        changes = replace(CHANGES, changes=pa.table({"id": [2]}))
        read.append(weakref.ref(changes.changes, lambda _: forgotten.set()))
        return changes

    with reading_ahead(SCHEMA, BATCHES, newest) as ahead:
        assert ahead is not None
        ahead.let_go()
        assert forgotten.wait(60)  # the thread is told that it is over a moment before it is
        assert len(read) == 1
