"""Each fsync, write, new file, new name and new folder of a task fails once: a clear error, every row is there once.

The tasks run in a process whose system calls a library lets fail (`tests.support.system_faults`). The same library
notes what was fsynced: what a batch, a chunk or a plan names is durable before the ledger has its row (R3)."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.pipeline import Pipeline
from tests.support.runs import make_plan
from tests.support.system_faults import Call, SystemFaults, durable
from tidemark.backfill.range_reading import read_chunks
from tidemark.capture.drain import drain
from tidemark.run import Run
from tidemark.unexpected_errors import without_texts

TABLES = ("public.keyed", "public.keyless")
ERRORS = {"DiskFull": errno.ENOSPC, "DiskFailed": errno.EIO}
KINDS = (Call.SYNC, Call.WRITE, Call.CREATE, Call.NAME, Call.FOLDER)
each_kind = pytest.mark.parametrize(
    ("calls", "kind"), [pytest.param(calls, kind, id=f"{calls.name}-{kind}") for calls in KINDS for kind in ERRORS]
)

Task = Callable[[Run], object]


def attempt(task: Task, run: Run) -> tuple[str, str] | None:
    """Run a task; the kind and the words of its error, None if it succeeds."""
    try:
        task(run)
    except Exception as failed:
        error = without_texts(failed)
        return type(error).__name__, str(error)
    return None


@dataclass
class Shop:
    """A pipeline, and the process in which its tasks run."""

    pipeline: Pipeline
    faults: SystemFaults
    pool: ProcessPoolExecutor
    rows: int = 0

    def attempt(self, task: Task, name: str, run_id: str) -> tuple[str, str] | None:
        return self.pool.submit(attempt, task, self.pipeline.task(name, run_id)).result()

    def change(self) -> None:
        self.rows += 1
        self.pipeline.execute(*(f"INSERT INTO {table} VALUES ({self.rows}, md5('{self.rows}'))" for table in TABLES))

    def each_call_fails(self, task: Task, name: str, begin: Callable[[str], object], calls: Call, kind: str) -> int:
        """The task of one run with its first call failing, of the next run with its second, and so on until none is
        left; how many there are. `begin` prepares the run of that id. The run's retry has to succeed."""
        number = 0
        while True:
            number += 1
            run_id = f"{name}-{number}"
            begin(run_id)
            with self.faults.failing(calls, self.pipeline.config.lake, number, ERRORS[kind]):
                outcome = self.attempt(task, name, run_id)
            if not self.faults.failed:
                assert outcome is None
                return number - 1
            if outcome is None:  # a file system may have no links
                assert calls is Call.NAME, f"{calls!r} number {number} failed, and the task succeeded"
                continue
            assert outcome[0] == kind, outcome
            assert f"the lake {self.pipeline.config.lake}" in outcome[1]
            assert self.attempt(task, name, run_id) is None


@pytest.fixture
def shop(pipeline: Pipeline, tmp_path: Path) -> Iterator[Shop]:
    pipeline.execute(
        "CREATE TABLE keyed (id int PRIMARY KEY, v text)",
        "CREATE TABLE keyless (id int, v text)",
        "ALTER TABLE keyless REPLICA IDENTITY FULL",
    )
    faults = SystemFaults(tmp_path / "faults")
    with faults.process() as pool:
        yield Shop(pipeline, faults, pool)


@pytest.mark.thorough
@each_kind
def test_a_drain_with_a_failing_call_loses_and_doubles_nothing(shop: Shop, calls: Call, kind: str) -> None:
    shop.pipeline.begin()
    count = shop.each_call_fails(drain, "drain", lambda run_id: shop.change(), calls, kind)
    print(f"{count} calls {calls!r} failed with {kind}")
    assert count >= (1 if calls is Call.NAME else 3)
    for table in TABLES:
        assert sorted(row["id"] for row in shop.pipeline.staged(table)) == list(range(1, shop.rows + 1))


@pytest.mark.thorough
@each_kind
def test_a_chunk_with_a_failing_call_is_read_again(shop: Shop, calls: Call, kind: str) -> None:
    """Each run is a backfill of its own."""
    shop.pipeline.capture()
    for _ in range(3):
        shop.change()
    shop.pipeline.drain()
    count = shop.each_call_fails(
        read_chunks,
        "read_chunks/1",
        lambda run_id: shop.pipeline.plan(run_id, tables=TABLES[:1], chunk_rows=2, replace=True),
        calls,
        kind,
    )
    print(f"{count} calls {calls!r} failed with {kind}")
    assert count >= (0 if calls is Call.NAME else 2)
    (last,) = shop.pipeline.plan("read_chunks/1-again", tables=TABLES[:1], chunk_rows=2, replace=True)
    shop.pipeline.read()
    assert [row["id"] for row in shop.pipeline.rows(last)] == [1, 2, 3]


@pytest.mark.thorough
@each_kind
def test_a_plan_with_a_failing_call_is_written_again(shop: Shop, calls: Call, kind: str) -> None:
    shop.pipeline.begin()
    shop.change()
    shop.pipeline.drain()
    count = shop.each_call_fails(make_plan, "merge", lambda run_id: None, calls, kind)
    print(f"{count} calls {calls!r} failed with {kind}")
    assert count >= 1


@pytest.mark.walks("DiskFailed")
def test_what_the_ledger_has_is_durable(shop: Shop) -> None:
    """After a loss of power at any moment behind the ledger's commit, all of it is there; and an fsync that fails
    comes before that commit."""
    pipeline = shop.pipeline
    pipeline.capture()
    shop.change()
    with shop.faults.failing(Call.SYNC, pipeline.config.lake):
        outcome = shop.attempt(drain, "drain", "run")
    assert outcome is not None
    assert outcome[0] == "DiskFailed"
    assert "The retry writes new files" in outcome[1]
    assert pipeline.registered() == []

    shop.faults.note_below(pipeline.config.lake)
    assert shop.attempt(drain, "drain", "run") is None
    (backfill,) = pipeline.plan(tables=TABLES[:1])
    assert shop.attempt(read_chunks, "read_chunks/1", pipeline.run_id) is None
    assert shop.attempt(make_plan, "merge", "run") is None
    kept, written = durable(shop.faults.notes)
    assert kept < written, "a name that was there for a moment counts as durable"

    named = {batch.manifest for batch in pipeline.registered()}
    named |= {file.path for manifest in pipeline.manifests() for table in manifest.tables for file in table.files}
    named |= {manifest.transactions.path for manifest in pipeline.manifests() if manifest.transactions}
    named |= {file.path for chunk in pipeline.chunks(backfill) for file in chunk.files}
    named |= {path for (path,) in pipeline.ledger_query("SELECT path FROM tidemark.plans")}
    assert len(named) == 6
    assert {f"{pipeline.config.lake}/{path}" for path in named} - kept == set()
    assert [row["id"] for row in pipeline.staged(TABLES[0])] == [1]
