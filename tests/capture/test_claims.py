"""The drain's side of a backfill: which chunks a batch claims, sweeps and has read again."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from msgspec.structs import replace

from sandbox.services.postgres import wait_for
from tests.support.backfills import HALVES, chunk_of, open_backfill, record
from tests.support.manifests import plan_of
from tests.support.pipeline import Pipeline
from tidemark.capture import drain as drain_module
from tidemark.capture.continuity.generation import settle
from tidemark.capture.continuity.recovery import list_staging
from tidemark.capture.waiting import changes_waiting
from tidemark.errors import ClaimRefused, SchemaVersionTaken
from tidemark.formats import layout
from tidemark.formats.manifest import BatchManifest, Claim, Sweep
from tidemark.formats.watermark import Watermark
from tidemark.ledger import leases
from tidemark.ledger.captured import schema_versions, tables
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.reading import backfills, chunks
from tidemark.ledger.reading.backfills import Range
from tidemark.ledger.reading.chunks import ReadChunk
from tidemark.lsn import Lsn
from tidemark.postgres import postgres_session
from tidemark.schema.table import Column
from tidemark.source.catalogue import catalog
from tidemark.source.wal.wal_messages import emit

TABLE = "public.orders"


class Reader:
    """What plan and readers leave in ledger, lake and stream, without reading anything."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def open(self, *ranges: Range, backfill: str = "b1", **fields: Any) -> None:
        with open_ledger(self.pipeline.ledger, self.pipeline.config.pipeline) as book:
            self.made = open_backfill(book, TABLE, backfill, *ranges, pipeline=self.pipeline.config.pipeline, **fields)

    def read(self, chunk: str = "1-1", *, watermark: bool = True, **fields: Any) -> ReadChunk:
        """Record a chunk that ends its range."""
        fingerprint = self.pipeline.table_row(TABLE).fingerprint
        snapshot = self.pipeline.one("SELECT pg_current_snapshot()::text")
        read = chunk_of(self.made, chunk, **{"fingerprint": fingerprint, "snapshot": snapshot, **fields})
        for file in read.files:
            self.pipeline.store.write_atomic(file.path, b"rows")
        assert record(self.pipeline.ledger, read, done=True)
        if watermark:
            self.emit(read)
        return read

    def emit(self, read: ReadChunk, side: Any = "high", /, **other: Any) -> None:
        mark = Watermark(side, read.pipeline, 1, read.backfill, read.table, read.chunk, read.attempt)
        emit(self.pipeline.connection, replace(mark, **other))

    def chunks(self) -> list[ReadChunk]:
        with open_ledger(self.pipeline.ledger, self.pipeline.config.pipeline) as book:
            return chunks.of_backfill(book, self.made.backfill)

    def unclaimed(self) -> list[str]:
        with open_ledger(self.pipeline.ledger, self.pipeline.config.pipeline) as book:
            return [c.chunk for c in chunks.unclaimed(book)]


@pytest.fixture
def reader(pipeline: Pipeline) -> Reader:
    """A captured table with one staged row, and its fingerprint in the ledger."""
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES (1)")
    pipeline.drain()
    return Reader(pipeline)


def claims(pipeline: Pipeline) -> list[tuple[Lsn, Claim]]:
    return [(m.end_lsn, c) for m in pipeline.manifests() for t in m.tables for c in t.claims]


def sweeps(pipeline: Pipeline) -> list[Sweep]:
    return [s for m in pipeline.manifests() for t in m.tables for s in t.sweeps]


# --- claims -----------------------------------------------------------------------------------------------------------


def test_a_chunk_is_claimed_by_the_batch_that_has_its_high_watermark(pipeline: Pipeline, reader: Reader) -> None:
    reader.open()
    chunk = reader.read()
    reader.emit(chunk, "low")
    result = pipeline.drain()
    ((end_lsn, claim),) = claims(pipeline)
    assert (claim.chunk, claim.attempt, claim.snapshot, claim.files) == (
        "1-1",
        chunk.attempt,
        chunk.snapshot,
        chunk.files,
    )
    assert result.batches[0][0] <= claim.watermark_lsn < end_lsn == result.batches[-1][1]
    assert [c.claimed_lsn for c in reader.chunks()] == [end_lsn]
    (only,) = pipeline.manifests()[-1].tables
    assert (only.table, only.files, only.max_xid) == (TABLE, (), None)
    assert [s.version for s in pipeline.manifests()[-1].schemas] == [1]
    # Its own low and high watermark are no strangers; the one that the drain wrote again is a second one.
    assert result.skipped_messages == 1


def test_a_batch_knows_the_highest_transaction_of_each_table(pipeline: Pipeline, reader: Reader) -> None:
    with pipeline.connection.transaction():
        pipeline.execute("INSERT INTO orders VALUES (2)")
        first = pipeline.one("SELECT pg_current_xact_id()::text::bigint")
    with pipeline.connection.transaction():
        pipeline.execute("INSERT INTO orders VALUES (3)")
        last = pipeline.one("SELECT pg_current_xact_id()::text::bigint")
    pipeline.drain()
    (changed,) = pipeline.manifests()[-1].tables
    assert changed.max_xid == last > first


def test_a_chunk_whose_reader_died_before_the_high_watermark_is_claimed_all_the_same(
    pipeline: Pipeline, reader: Reader
) -> None:
    reader.open()
    reader.read(watermark=False)
    pipeline.drain()
    assert [c.chunk for _, c in claims(pipeline)] == ["1-1"]
    assert reader.unclaimed() == []


def test_high_watermarks_are_written_again_although_a_synchronous_standby_is_away(
    pipeline: Pipeline, reader: Reader
) -> None:
    reader.open(*HALVES)
    reader.read("1-1", watermark=False)
    reader.read("2-1", watermark=False)
    name = pipeline.one("SELECT current_database()")
    results: list[Any] = []
    draining = threading.Thread(target=lambda: results.append(pipeline.drain()))
    try:
        pipeline.execute(
            "ALTER SYSTEM SET synchronous_commit = local",
            "ALTER SYSTEM SET synchronous_standby_names = 'nobody'",
            f'ALTER DATABASE "{name}" SET synchronous_commit = remote_apply',
            "SELECT pg_reload_conf()",
        )
        wait_for("the setting is in force", lambda: pipeline.one("SHOW synchronous_standby_names") == "nobody")
        draining.start()
        wait_for("the drain is done", lambda: results)
    finally:
        pipeline.execute(
            "ALTER SYSTEM RESET synchronous_standby_names",
            "ALTER SYSTEM RESET synchronous_commit",
            "SELECT pg_reload_conf()",
        )
        draining.join()
    (first, second) = (c.watermark_lsn for _, c in claims(pipeline))
    assert first == second, "one transaction holds both"


@pytest.mark.parametrize(
    "other",
    [
        {"attempt": "00000000-0000-0000-0000-000000000001"},
        {"chunk": "1-9"},
        {"backfill": "b9"},
        {"table": "public.other"},
    ],
)
def test_a_watermark_without_a_chunk_claims_nothing_and_is_counted(
    pipeline: Pipeline, reader: Reader, other: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "emit_again", lambda *_: 0)
    reader.open()
    reader.emit(reader.read(watermark=False), **other)
    result = pipeline.drain()
    assert claims(pipeline) == []
    assert result.skipped_messages == 1
    assert reader.unclaimed() == ["1-1"]


@pytest.mark.parametrize("other", [{"pipeline": "another"}, {"generation": 2}, {"table": "public.other"}])
def test_a_watermark_of_another_pipeline_generation_or_table_is_a_stranger(
    pipeline: Pipeline, reader: Reader, other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "emit_again", lambda *_: 0)
    reader.open()
    reader.emit(reader.read(watermark=False), **other)
    assert pipeline.drain().skipped_messages == 1
    assert claims(pipeline) == []


def test_a_watermark_from_before_its_chunk_was_read_is_a_forged_one(
    pipeline: Pipeline, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever lists the lake sees the attempt before the chunk's row is in the ledger. A high watermark below what the
    # snapshot saw would apply that twice to a table without key.
    monkeypatch.setattr(drain_module, "emit_again", lambda *_: 0)
    reader.open()
    reader.emit(chunk_of(reader.made))
    pipeline.execute("INSERT INTO orders VALUES (2)")
    chunk = reader.read(watermark=False, read_lsn=Lsn.parse(pipeline.one("SELECT pg_current_wal_insert_lsn()::text")))
    result = pipeline.drain()
    assert (claims(pipeline), result.skipped_messages, reader.unclaimed()) == ([], 1, ["1-1"])

    reader.emit(chunk)
    pipeline.drain()
    ((_, claim),) = claims(pipeline)
    assert claim.watermark_lsn > chunk.read_lsn


def test_a_forged_watermark_in_front_does_not_hide_the_real_one(
    pipeline: Pipeline, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "emit_again", lambda *_: 0)
    reader.open()
    reader.emit(chunk_of(reader.made))
    chunk = reader.read(watermark=False, read_lsn=Lsn.parse(pipeline.one("SELECT pg_current_wal_insert_lsn()::text")))
    reader.emit(chunk, table="public.other")
    reader.emit(chunk)
    reader.emit(chunk)
    result = pipeline.drain()
    assert ([c.chunk for _, c in claims(pipeline)], result.skipped_messages) == (["1-1"], 3)


def test_a_low_watermark_claims_nothing(pipeline: Pipeline, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_module, "emit_again", lambda *_: 0)
    reader.open()
    reader.emit(reader.read(watermark=False), "low")
    assert pipeline.drain().skipped_messages == 0
    assert claims(pipeline) == []


def test_a_watermark_that_comes_runs_later_claims_its_chunk_then(
    pipeline: Pipeline, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.open()
    with monkeypatch.context() as patch:
        patch.setattr(drain_module, "emit_again", lambda *_: 0)
        chunk = reader.read(watermark=False)
        pipeline.drain()
        pipeline.execute("INSERT INTO orders VALUES (2)")
        pipeline.drain()
        assert claims(pipeline) == []
        reader.emit(chunk)
        pipeline.drain()
    assert [c.chunk for _, c in claims(pipeline)] == ["1-1"]


def test_a_watermark_in_a_transaction_of_many_blocks_has_the_time_of_its_commit(
    pipeline: Pipeline, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(drain_module, "emit_again", lambda *_: 0)
    reader.open()
    chunk = reader.read(watermark=False)
    with pipeline.connection.transaction():
        reader.emit(chunk)
        pipeline.execute("INSERT INTO orders SELECT i, repeat('x', 100) FROM generate_series(2, 200) i")
    pipeline.drain()
    ((_, claim),) = claims(pipeline)
    at = {Lsn(t["commit_lsn"]): t["committed_at"].isoformat() for t in pipeline.transactions()}
    assert claim.watermark_at == at[claim.watermark_lsn]


def test_a_batch_has_changes_and_claims_of_one_table(pipeline: Pipeline, reader: Reader) -> None:
    reader.open()
    reader.read()
    pipeline.execute("INSERT INTO orders VALUES (2)")
    pipeline.drain()
    (table,) = pipeline.manifests()[-1].tables
    assert (table.rows, len(table.claims), len(table.sweeps)) == (1, 1, 1)


# --- the run ----------------------------------------------------------------------------------------------------------


def test_a_run_that_has_its_heartbeat_goes_on_while_a_chunk_is_unclaimed(pipeline: Pipeline, reader: Reader) -> None:
    pipeline.drain("run-a")
    reader.open()
    reader.read(watermark=False)
    again = pipeline.drain("run-a")
    assert len(again.batches) == 2
    assert again.reached_target
    assert reader.unclaimed() == []
    assert pipeline.drain("run-a") == again


def test_an_unclaimed_chunk_is_something_to_wait_for(pipeline: Pipeline, reader: Reader) -> None:
    reader.open()
    with open_ledger(pipeline.ledger, pipeline.config.pipeline) as book:
        book.execute("UPDATE tidemark.tables SET state = 'deferred'")
        book.execute(
            'INSERT INTO tidemark.positions (pipeline, generation, "table", history_lsn, current_lsn) '
            'SELECT pipeline, generation, "table", end_lsn, end_lsn FROM tidemark.batch_tables'
        )

    def waiting() -> Any:
        return changes_waiting(pipeline.config, source=pipeline.source, ledger=pipeline.ledger)

    reader.read(watermark=False)
    answer = waiting()
    assert (answer.waiting, answer.reason) == (True, "1 chunk of public.orders is not claimed")


def test_a_backfill_closed_while_the_batch_is_staged_makes_the_drain_try_again(
    pipeline: Pipeline, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.open()
    reader.read()
    real = drain_module.reach

    def close_first(name: str) -> None:
        if name == "drain.before_register":
            with open_ledger(pipeline.ledger, pipeline.config.pipeline) as book:
                backfills.close(book, "b1", "another one takes its place")
        real(name)

    with monkeypatch.context() as patch:
        patch.setattr(drain_module, "reach", close_first)
        with pytest.raises(ClaimRefused, match="b1"):
            pipeline.drain("run-a")
    assert len(pipeline.registered()) == 1
    assert pipeline.drain("run-a").reached_target
    assert [claim.chunk for _, claim in claims(pipeline)] == ["1-1"], "the batch is registered as it was staged"
    with open_ledger(pipeline.ledger, pipeline.config.pipeline) as book:
        closed = backfills.one(book, "b1")
    assert (closed and closed.state, reader.unclaimed()) == ("closed", [])


# --- a version number that a reader was faster to give ----------------------------------------------------------------


def adopt_first(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain that decoded two changes under version 2, which a reader gives to a wider shape before they are
    registered."""
    pipeline.execute("ALTER TABLE orders ADD c int", "INSERT INTO orders VALUES (2, 'x', 3)")
    real = drain_module.reach

    def adopt(name: str) -> None:
        if name == "drain.before_register":
            pipeline.execute("ALTER TABLE orders ADD d int", "INSERT INTO orders VALUES (4, 'y', 5, 6)")
            with open_ledger(pipeline.ledger, pipeline.config.pipeline) as book:
                (shape,) = tables.versions(book, TABLE)
                more = tuple(Column(column, "integer", 23, -1, "int") for column in "cd")
                wider = replace(shape, columns=shape.columns + more)
                assert schema_versions.adopt(book, wider).version == 2
        real(name)

    with monkeypatch.context() as patch:
        patch.setattr(drain_module, "reach", adopt)
        with pytest.raises(SchemaVersionTaken):
            pipeline.drain("run-a")


def left_over(pipeline: Pipeline) -> list[str]:
    """The paths of complete manifests that are not registered."""
    folder = layout.generation_folder(pipeline.config.pipeline, 1)
    paths = [layout.manifest_file(f"{folder}/{name}") for name in pipeline.store.list(folder)]
    registered = {batch.manifest for batch in pipeline.registered()}
    return [path for path in paths if pipeline.store.exists(path) and path not in registered]


@pytest.mark.parametrize("first", ["the retry", "a preflight"])
def test_a_batch_whose_version_a_reader_took_is_drained_again_under_the_next(
    pipeline: Pipeline, reader: Reader, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    adopt_first(pipeline, monkeypatch)
    assert len(left_over(pipeline)) == 1
    if first == "a preflight":
        settled(pipeline)
        assert left_over(pipeline) == []
    assert pipeline.drain("run-a").reached_target
    staged = [(row["id"], row.get("c"), row.get("d")) for row in pipeline.staged(TABLE)]
    assert staged == [(1, None, None), (2, 3, None), (4, 5, 6)]
    versions = [f.schema_version for m in pipeline.manifests() for t in m.tables for f in t.files]
    assert versions == [1, 3, 4]
    assert left_over(pipeline) == []


def test_such_a_batch_stays_where_the_source_cannot_send_it_again(
    pipeline: Pipeline, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt_first(pipeline, monkeypatch)
    (path,) = left_over(pipeline)
    end_lsn = BatchManifest.from_json(pipeline.store.read(path).decode()).end_lsn
    pipeline.advance(end_lsn)
    for _ in range(2):
        with pytest.raises(SchemaVersionTaken):
            settled(pipeline)
        assert left_over(pipeline) == [path]


def test_such_a_batch_stays_where_a_plan_names_it(
    pipeline: Pipeline, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restored ledger: the tables' positions are ends of these very batches."""
    adopt_first(pipeline, monkeypatch)
    (path,) = left_over(pipeline)
    plan = plan_of("p1", BatchManifest.from_json(pipeline.store.read(path).decode()))
    pipeline.store.write_atomic(layout.plan_file(pipeline.config.pipeline, "p1"), plan.to_json().encode())
    for _ in range(2):
        with pytest.raises(SchemaVersionTaken):
            settled(pipeline)
        assert left_over(pipeline) == [path]


# --- sweeps -----------------------------------------------------------------------------------------------------------


def test_the_batch_with_the_last_claim_sweeps(pipeline: Pipeline, reader: Reader) -> None:
    reader.open(*HALVES, snapshot="690:690:")
    reader.read("1-1", upper=("10",))
    pipeline.drain()
    assert sweeps(pipeline) == []
    reader.read("2-1", lower=("10",))
    pipeline.drain()
    assert sweeps(pipeline) == [Sweep("b1", "690:690:", 2)]


def test_a_chunk_that_is_left_unclaimed_is_waited_for(
    pipeline: Pipeline, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "emit_again", lambda *_: 0)
    reader.open(*HALVES)
    left = reader.read("1-1", upper=("10",), watermark=False)
    reader.read("2-1", lower=("10",))
    pipeline.drain()
    assert sweeps(pipeline) == []
    reader.emit(left)
    pipeline.drain()
    assert [s.backfill for s in sweeps(pipeline)] == ["b1"]


def test_a_backfill_of_a_part_sweeps_nothing(pipeline: Pipeline, reader: Reader) -> None:
    reader.open(row_filter="id > 3", sweeps=False)
    reader.read()
    pipeline.drain()
    assert (len(claims(pipeline)), sweeps(pipeline)) == (1, [])


def test_the_last_chunk_recorded_between_lookup_and_registration_is_claimed_and_sweeps_later(
    pipeline: Pipeline, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was unread when the drain asked, so there is no sweep; its watermark is behind the batch."""
    reader.open(*HALVES)
    reader.read("1-1", upper=("10",))
    real = drain_module.reach
    todo = ["2-1"]

    def read_first(name: str) -> None:
        if name == "drain.before_manifest" and todo:
            reader.read(todo.pop(), lower=("10",))
        real(name)

    with monkeypatch.context() as patch:
        patch.setattr(drain_module, "reach", read_first)
        pipeline.drain()
    assert (len(claims(pipeline)), sweeps(pipeline), reader.unclaimed()) == (1, [], ["2-1"])
    pipeline.drain()
    assert (len(claims(pipeline)), len(sweeps(pipeline)), reader.unclaimed()) == (2, 1, [])


# --- the table became another one -------------------------------------------------------------------------------------


def test_a_chunk_from_before_a_rewrite_is_read_again(pipeline: Pipeline, reader: Reader) -> None:
    reader.open()
    reader.read(upper=("7",))
    pipeline.execute("ALTER TABLE orders ALTER note TYPE varchar(10)")
    pipeline.drain()
    assert (claims(pipeline), sweeps(pipeline), reader.unclaimed()) == ([], [], [])
    (rejected,) = reader.chunks()
    assert "note" in (rejected.rejected or "")
    with open_ledger(pipeline.ledger, pipeline.config.pipeline) as book:
        (again,) = chunks.free_ranges(book, reader.made.run_id)
    assert (again.range, again.lower, again.upper) == (2, None, ("7",))


def test_a_nullable_column_that_was_added_since_rejects_nothing(pipeline: Pipeline, reader: Reader) -> None:
    reader.open()
    reader.read()
    pipeline.execute("ALTER TABLE orders ADD extra int")
    pipeline.drain()
    assert len(claims(pipeline)) == 1


def test_a_chunk_that_is_younger_than_the_runs_own_look_is_claimed(
    pipeline: Pipeline, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run began before the column's type changed, the chunk was read after that, and is all right."""
    reader.open()
    real = drain_module.emit_heartbeat

    def alter_and_read(*arguments: Any) -> Any:
        pipeline.execute("ALTER TABLE orders ALTER note TYPE varchar(10)")
        with open_ledger(pipeline.ledger, pipeline.config.pipeline) as book:
            book.execute("SELECT 1")
        (table,) = catalog.captured_tables(pipeline.connection, pipeline.config)
        fingerprint = catalog.fingerprint(pipeline.connection, pipeline.config.publication, [table])[TABLE]
        reader.read(fingerprint=fingerprint.to_json())
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(drain_module, "emit_heartbeat", alter_and_read)
        pipeline.drain()
    assert len(claims(pipeline)) == 1


def test_a_chunk_of_a_table_that_is_gone_is_not_claimed(pipeline: Pipeline, reader: Reader) -> None:
    reader.open()
    reader.read()
    pipeline.execute("DROP TABLE orders")
    pipeline.drain()
    assert claims(pipeline) == []
    assert [c.rejected for c in reader.chunks()] == ["the table is not captured any more"]


# --- a drain that dies, a ledger that is an older copy ----------------------------------------------------------------


def settled(pipeline: Pipeline) -> None:
    with (
        leases.hold(pipeline.ledger, pipeline.config.pipeline, leases.SLOT, "later/drain") as lease,
        postgres_session.connect(pipeline.source, application_name="later") as source,
        open_ledger(pipeline.ledger, pipeline.config.pipeline) as book,
    ):
        settle(pipeline.config, source, book, list_staging(book, pipeline.store), lease)


def test_claims_of_a_manifest_that_was_not_registered_are_registered_with_it(
    pipeline: Pipeline, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.open()
    reader.read()
    monkeypatch.setattr(drain_module.batches, "register", _dies)
    with pytest.raises(InterruptedError):
        pipeline.drain()
    monkeypatch.undo()
    assert reader.unclaimed() == ["1-1"]
    settled(pipeline)
    assert reader.unclaimed() == []
    assert [s.backfill for s in sweeps(pipeline)] == ["b1"]


def _dies(*_: Any, **__: Any) -> None:
    raise InterruptedError


def test_a_manifest_whose_chunk_files_are_gone_is_not_registered_again(
    pipeline: Pipeline, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.open()
    chunk = reader.read()
    with monkeypatch.context() as patch:
        patch.setattr(drain_module.batches, "register", _dies)
        with pytest.raises(InterruptedError):
            pipeline.drain()
    pipeline.store.delete(chunk.files[0].path.rpartition("/")[0])
    settled(pipeline)
    assert len(pipeline.registered()) == 1


def test_a_ledger_from_before_the_backfill_gets_its_claims_back(pipeline: Pipeline, reader: Reader) -> None:
    reader.open()
    reader.read()
    pipeline.drain()
    staged = pipeline.registered()[0].end_lsn
    before = pipeline.manifests()
    with open_ledger(pipeline.ledger, pipeline.config.pipeline) as book:
        for table in ("chunks", "ranges", "backfills"):
            book.execute(f"DELETE FROM tidemark.{table}".encode())
        book.execute("DELETE FROM tidemark.batch_tables WHERE start_lsn >= %s", (staged,))
        book.execute("DELETE FROM tidemark.batches WHERE start_lsn >= %s", (staged,))
        book.execute("UPDATE tidemark.generations SET staged_lsn = %s", (staged,))
    settled(pipeline)
    assert pipeline.manifests() == before
    with open_ledger(pipeline.ledger, pipeline.config.pipeline) as book:
        rows = book.execute("SELECT jsonb_array_length(claims) FROM tidemark.batch_tables ORDER BY end_lsn").fetchall()
    assert rows == [(0,), (1,)]
