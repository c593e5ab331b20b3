"""A drain that follows the source over one connection stages what separate runs stage, and lets others at the slot."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from sandbox.services.postgres import wait_for
from tests.support.following import Follower
from tests.support.pipeline import Pipeline
from tests.support.stage_process import fork_server
from tests.support.thorough import thorough
from tidemark import failpoints
from tidemark.capture.confirm import confirm
from tidemark.capture.following import drain_cycles, unpublished_tables
from tidemark.capture.following.drain_cycles import follow
from tidemark.capture.following.unpublished_tables import UnpublishedTables
from tidemark.capture.following.window import HANDOVER_S, OTHERWISE_S, FollowWindow, window_of
from tidemark.config import PipelineConfig, TableRule
from tidemark.errors import LeaseLost, TidemarkError
from tidemark.ledger import leases
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.staged import positions
from tidemark.lsn import Lsn
from tidemark.run import Run
from tidemark.source.catalogue import catalog

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10,2), note text)"

# Each is followed by a wait until it is staged; between two of them a drain of its own ends.
STORY = (
    ["INSERT INTO orders SELECT i, i, 'n' || i FROM generate_series(1, 5) i", "INSERT INTO plain VALUES (1, 'a')"],
    ["UPDATE orders SET note = 'x' WHERE id < 3", "INSERT INTO parts VALUES (1, 'one'), (11, 'two')"],
    ["DELETE FROM orders WHERE id = 5", "INSERT INTO parts VALUES (2, 'one')"],
    ["ALTER TABLE orders ADD COLUMN more int DEFAULT 7", "INSERT INTO orders VALUES (6, 6, 'six', 6)"],
    ["UPDATE orders SET amount = 0 WHERE id = 1", "UPDATE plain SET v = 'b'"],
    ["CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)"],
    ["INSERT INTO later VALUES (2)", "ALTER TABLE orders RENAME COLUMN note TO remark"],
    ["UPDATE orders SET remark = 'y' WHERE id = 2", "TRUNCATE plain", "INSERT INTO plain VALUES (3, 'c')"],
    ["CREATE TABLE parts_3 PARTITION OF parts FOR VALUES FROM (20) TO (30)", "INSERT INTO parts VALUES (21, 'three')"],
    ["INSERT INTO parts VALUES (3, 'one'), (22, 'three')", "ALTER TABLE parts DETACH PARTITION parts_2"],
    ["BEGIN", "INSERT INTO orders VALUES (8)", "SAVEPOINT s", "DELETE FROM orders", "ROLLBACK TO s", "COMMIT"],
    ["ALTER TABLE orders DROP COLUMN amount", "INSERT INTO orders VALUES (9, 'nine', 9)", "DELETE FROM parts"],
)  # fmt: skip


def begin(*pipelines: Pipeline) -> None:
    pipelines[0].execute(
        ORDERS,
        "CREATE TABLE plain (id int PRIMARY KEY, v text)",
        "CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20)",
    )
    for pipeline in pipelines:
        pipeline.begin()


def staged(pipeline: Pipeline) -> dict[str, list[dict[str, Any]]]:
    tables = sorted({table.table for manifest in pipeline.manifests() for table in manifest.tables})
    return {table: pipeline.staged(table) for table in tables}


def test_cycles_stage_what_runs_of_their_own_stage(
    pipeline: Pipeline, new_pipeline: Callable[..., Pipeline], following: Callable[..., Follower]
) -> None:
    other = new_pipeline(pipeline.source)
    begin(pipeline, other)
    follower = following()
    for statements in STORY:
        pipeline.execute(*statements)
        follower.await_staged()
        other.drain()
        follower.await_staged()  # the other's heartbeat, too: its next cycle begins behind the next statements
    result = follower.end()
    assert result.reached_target
    assert [end for _, end in result.batches[:-1]] == [start for start, _ in result.batches[1:]]
    # The last cycle may have looked at the catalogue just before the last change of a definition was made.
    pipeline.drain("behind it")
    other.drain()
    assert staged(pipeline) == staged(other)
    ours, theirs = pipeline.table_rows(), other.table_rows()
    assert {t: (r.life, _look(r)) for t, r in ours.items()} == {t: (r.life, _look(r)) for t, r in theirs.items()}
    said = [{(s.table, s.version, str(s)) for m in p.manifests() for s in m.schemas} for p in (pipeline, other)]
    assert said[0] == said[1]
    marks = [[(k.table, k.state, k.message) for m in p.manifests() for k in m.marks] for p in (pipeline, other)]
    assert marks[0] == marks[1]


def _look(row: TableRow) -> dict[str, Any]:
    """Without what is its publication's, of which each pipeline has one."""
    of_publication = ("publication_xmin", "membership")
    return {name: value for name, value in (row.fingerprint or {}).items() if name not in of_publication}


def test_one_connection_serves_all_cycles_as_long_as_definitions_stand_still(
    pipeline: Pipeline, following: Callable[..., Follower]
) -> None:
    begin(pipeline)
    follower = following()
    follower.await_staged()
    walsender = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{pipeline.config.slot}'"
    pids = set()
    for number in range(5):
        pipeline.execute(f"INSERT INTO orders VALUES ({number}, 1, 'n')", f"INSERT INTO parts VALUES ({number}, 'p')")
        follower.await_staged()
        pids.add(pipeline.one(walsender))
    assert len(pids) == 1
    follower.end()
    assert [row["id"] for row in pipeline.staged("public.orders")] == list(range(5))


def test_each_cycle_reads_the_catalogue_once_while_definitions_stand_still(
    pipeline: Pipeline, following: Callable[..., Follower], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a transaction open for long at the source, every change is of a younger one than any reading has ended."""
    begin(pipeline)
    with psycopg.connect(pipeline.source) as old:
        old.execute("SELECT pg_current_xact_id()")
        follower = following()
        pipeline.execute("INSERT INTO orders VALUES (0, 1, 'n')", "INSERT INTO plain VALUES (0)")
        follower.await_staged()
        registered, read = len(pipeline.registered()), []
        read_types = catalog.read_types
        monkeypatch.setattr(catalog, "read_types", lambda *of: read.append(of) or read_types(*of))
        for number in range(1, 6):
            pipeline.execute(f"INSERT INTO orders VALUES ({number}, 1)", f"INSERT INTO plain VALUES ({number})")
            follower.await_staged()
        cycles = len(pipeline.registered()) - registered
        assert cycles >= 5
        assert len(read) <= cycles + 1  # one may have begun, and staged nothing yet
        follower.end()


def test_nothing_is_written_while_nothing_happens(pipeline: Pipeline, following: Callable[..., Follower]) -> None:
    begin(pipeline)
    pipeline.execute("INSERT INTO orders VALUES (1, 1, 'n')")
    follower = following()
    follower.await_staged()
    registered = len(pipeline.registered())
    looks: list[bool] = []
    wait_for("some time passes", lambda: looks.append(True) or len(looks) > 40)
    assert len(pipeline.registered()) == registered
    assert len(follower.end().batches) == registered == len(pipeline.registered())


def test_a_column_added_to_a_table_that_nobody_writes_to_is_taken_up(
    pipeline: Pipeline, following: Callable[..., Follower], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_cycles, "UNTOLD_S", 0.1)
    begin(pipeline)
    pipeline.execute("INSERT INTO orders VALUES (1, 1, 'n')")
    follower = following()
    follower.await_staged()
    pipeline.execute("ALTER TABLE orders ADD COLUMN more int DEFAULT 7")

    def names() -> set[str]:
        return {column.name for m in pipeline.manifests() for schema in m.schemas for column in schema.columns}

    wait_for("the column is in a definition", lambda: "more" in names())
    looks = itertools.count()
    registered = len(pipeline.registered())
    wait_for("some time passes", lambda: next(looks) > 20)
    assert len(pipeline.registered()) <= registered + 1, "once"
    follower.end()


def test_two_pipelines_of_one_database_do_not_wake_each_other(
    pipeline: Pipeline, new_pipeline: Callable[..., Pipeline], following: Callable[..., Follower]
) -> None:
    """Each writes a heartbeat at the end of a cycle, and the other one's slot sends that."""
    other = new_pipeline(pipeline.source)
    begin(pipeline, other)
    followers = [following(of=both) for both in (pipeline, other)]
    pipeline.execute("INSERT INTO orders VALUES (1, 1, 'n')")
    for follower in followers:
        follower.await_staged()
    looks = itertools.count()
    registered = [len(both.registered()) for both in (pipeline, other)]
    wait_for("some time passes", lambda: next(looks) > 40)
    # A cycle may have been under way; without an end to it there would be dozens.
    assert sum(len(both.registered()) for both in (pipeline, other)) <= sum(registered) + 2
    for both, follower in zip((pipeline, other), followers, strict=True):
        both.execute("INSERT INTO orders VALUES (2, 1, 'n')" if both is pipeline else "DELETE FROM orders WHERE id = 1")
        follower.await_staged()
        follower.end()
    assert [len(both.staged("public.orders")) for both in (pipeline, other)] == [2, 3]


def test_whoever_waits_for_the_slot_is_let_in(pipeline: Pipeline, following: Callable[..., Follower]) -> None:
    begin(pipeline)
    follower = following()
    follower.await_staged()
    pipeline.execute("INSERT INTO orders VALUES (1, 1, 'n')")
    assert pipeline.drain("another", wait_s=30, holder="another").reached_target
    pipeline.execute("INSERT INTO orders VALUES (2, 1, 'n')")
    follower.await_staged()
    confirm(pipeline.task("confirm", "another"), wait_s=30)
    pipeline.execute("INSERT INTO orders VALUES (3, 1, 'n')")
    follower.await_staged()
    follower.end()
    assert [row["id"] for row in pipeline.staged("public.orders")] == [1, 2, 3]


def test_whoever_waits_is_let_in_before_all_of_a_backlog_is_staged(
    pipeline: Pipeline, following: Callable[..., Follower]
) -> None:
    """They wait for `run_s` at most, as if runs followed each other, and the valve is looked at as often."""
    pipeline.with_bounds(batch_rows=10, run_s=0)
    begin(pipeline)
    for number in range(12):
        pipeline.execute(f"INSERT INTO orders SELECT i, i, 'n' FROM generate_series({number}1, {number}9) i")
    behind = pipeline.flush_lsn()
    follower = following()
    wait_for("the first batch is staged", lambda: pipeline.generation() and pipeline.registered())
    with leases.hold(pipeline.ledger, pipeline.config.pipeline, leases.SLOT, "another", wait_s=30):
        assert pipeline.staged_lsn() < behind
    follower.await_staged()
    follower.end()
    assert len(pipeline.staged("public.orders")) == 12 * 9
    batches = pipeline.registered()
    assert [batch.end_lsn for batch in batches[:-1]] == [batch.start_lsn for batch in batches[1:]]


class OtherFile:
    """A pipeline file that is changed, and looked at as the task does."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.config: PipelineConfig | None = None

    def has_changed(self, source: psycopg.Connection[Any]) -> bool:
        return self.config is not None

    def taken_up(self, run: Run) -> Run:
        if self.config is None:
            return run
        self.pipeline.config, self.config = self.config, None
        self.pipeline.sound()
        return replace(run, config=self.pipeline.config)


def test_a_changed_file_is_taken_up_between_two_batches(
    new_pipeline: Callable[..., Pipeline], following: Callable[..., Follower]
) -> None:
    pipeline = new_pipeline()
    pipeline.execute(ORDERS)
    pipeline.sound()
    file = OtherFile(pipeline)
    follower = following(of=pipeline, file=file)
    pipeline.execute("INSERT INTO orders VALUES (1, 1, 'n')")
    follower.await_staged()
    rules = (TableRule("public.orders", leave_out=("note",)), TableRule("public.*"))
    file.config = replace(pipeline.config, tables=rules)
    wait_for("it was taken up", lambda: file.config is None)
    pipeline.execute("INSERT INTO orders VALUES (2, 1, 'n')")
    follower.await_staged()
    follower.end()
    rows = [row for rows in staged(pipeline).values() for row in rows]  # the table is built anew beside the old
    assert [(row["id"], row.get("note")) for row in rows] == [(1, "n"), (2, None)]


class NewTables:
    """A pipeline file that stays, with a preflight whenever the source has a table that it names."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.unpublished = UnpublishedTables()
        self.preflights = 0
        self.has_new = False

    def has_changed(self, source: psycopg.Connection[Any]) -> bool:
        self.has_new = self.unpublished.has_new(source, self.pipeline.config)
        return self.has_new

    def taken_up(self, run: Run) -> Run:
        if self.has_new:
            self.pipeline.sound()
            self.preflights += 1
        return run


def test_a_new_table_of_a_managed_publication_comes_in_the_middle_of_a_run(
    new_pipeline: Callable[..., Pipeline], following: Callable[..., Follower], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpublished_tables, "LOOK_S", 0.0)
    monkeypatch.setattr(drain_cycles, "LOOK_S", 0.0)
    pipeline = new_pipeline()
    pipeline.execute(ORDERS, "CREATE TABLE without_key (id int)")
    pipeline.sound()
    file = NewTables(pipeline)
    follower = following(of=pipeline, file=file)
    follower.await_staged()
    wait_for("the table without a key was judged", lambda: file.preflights == 1)
    pipeline.execute("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)")
    wait_for("the new table was judged", lambda: file.preflights == 2)
    pipeline.execute("INSERT INTO later VALUES (2)", "INSERT INTO orders VALUES (1, 1, 'n')")
    follower.await_staged()
    assert [row["id"] for row in pipeline.staged("public.later")] == [2]
    assert pipeline.table_rows()["public.later"].life.needs_backfill, "its first row is in no change"
    pipeline.execute("ALTER TABLE without_key ADD PRIMARY KEY (id)")
    wait_for("the table with a key by now was judged", lambda: file.preflights == 3)
    pipeline.execute("INSERT INTO without_key VALUES (1)")
    follower.await_staged()
    assert [row["id"] for row in pipeline.staged("public.without_key")] == [1]
    looks = itertools.count()
    wait_for("some time passes", lambda: next(looks) > 20)
    assert file.preflights == 3
    follower.end()


def test_of_two_tries_at_once_the_later_one_stages_everything_once(
    pipeline: Pipeline, following: Callable[..., Follower]
) -> None:
    begin(pipeline)
    first = following()
    pipeline.execute("INSERT INTO orders VALUES (1, 1, 'n')")
    first.await_staged()
    second = following()  # of the same task: it takes the lease at once, and waits for the slot
    number = itertools.count(2)

    def first_has_lost() -> bool:
        pipeline.execute(f"INSERT INTO orders VALUES ({next(number)}, 1, 'n')")
        return not first.thread.is_alive()

    wait_for("the first try has seen that another one has its lease", first_has_lost)
    assert isinstance(first.error, LeaseLost)
    second.await_staged()
    second.end()
    assert [row["id"] for row in pipeline.staged("public.orders")] == list(range(1, next(number)))
    batches = pipeline.registered()
    assert [batch.end_lsn for batch in batches[:-1]] == [batch.start_lsn for batch in batches[1:]]


def test_the_slot_moves_to_what_the_ledger_has_as_applied_and_no_further(
    pipeline: Pipeline, following: Callable[..., Follower]
) -> None:
    begin(pipeline)
    pipeline.execute("INSERT INTO orders VALUES (1, 1, 'n')")
    follower = following()
    follower.await_staged()
    held_back = pipeline.registered()[0].start_lsn
    pipeline.execute("INSERT INTO orders VALUES (2, 1, 'n')")
    follower.await_staged()
    wait_for("the slot stands where the first change is not applied", lambda: pipeline.confirmed_lsn() == held_back)
    with pipeline.ledger_connection() as ledger:
        positions.rise(ledger, 1, {"public.orders": (pipeline.staged_lsn(), pipeline.staged_lsn())})
    staged_lsn = pipeline.staged_lsn()
    wait_for("the slot stands at what is staged", lambda: pipeline.confirmed_lsn() == staged_lsn)
    wait_for("the ledger knows", lambda: pipeline.generation().confirmed_lsn == staged_lsn)
    follower.end()


def test_a_transaction_larger_than_a_batch_is_staged_whole_in_the_middle_of_a_run(
    pipeline: Pipeline, following: Callable[..., Follower]
) -> None:
    pipeline.with_bounds(batch_rows=100)
    begin(pipeline)
    follower = following()
    pipeline.execute("INSERT INTO orders VALUES (0, 1, 'before')")
    follower.await_staged()
    pipeline.execute(
        "BEGIN",
        "INSERT INTO orders SELECT i, i, 'n' FROM generate_series(1, 1000) i",
        "UPDATE orders SET note = 'm' WHERE id > 500",
        "COMMIT",
        "INSERT INTO orders VALUES (1001, 1, 'behind')",
    )
    follower.await_staged()
    follower.end()
    rows = pipeline.staged("public.orders")
    assert len({row["_commit_lsn"] for row in rows}) == 3
    assert [row["id"] for row in rows if row["_op"] == "insert"] == list(range(1002))
    assert sum(row["_op"] == "update" for row in rows) == 500
    batches = pipeline.registered()
    assert [batch.end_lsn for batch in batches[:-1]] == [batch.start_lsn for batch in batches[1:]]


def test_the_valve_opens_in_the_middle_of_a_run(pipeline: Pipeline, following: Callable[..., Follower]) -> None:
    """Nothing is merged, so that the slot would stay where it is."""
    pipeline.with_bounds(wal_valve_bytes=2**20)
    begin(pipeline)
    follower = following()
    pipeline.execute("INSERT INTO orders VALUES (1, 1, 'n')")
    follower.await_staged()
    pipeline.execute("INSERT INTO orders SELECT i, i, repeat('n', 200) FROM generate_series(2, 20000) i")
    follower.await_staged()
    staged_lsn = pipeline.staged_lsn()
    wait_for("the slot stands at what is staged", lambda: (pipeline.confirmed_lsn() or Lsn(0)) >= staged_lsn)
    follower.end()
    assert len(pipeline.staged("public.orders")) == 20000


def test_a_table_parks_in_the_middle_of_a_run_and_the_others_go_on(
    pipeline: Pipeline, following: Callable[..., Follower]
) -> None:
    pipeline.config = replace(pipeline.config, evolve="freeze")
    begin(pipeline)
    follower = following()
    pipeline.execute("INSERT INTO orders VALUES (1, 1, 'n')", "INSERT INTO plain VALUES (1, 'a')")
    follower.await_staged()
    pipeline.execute("ALTER TABLE orders ALTER amount TYPE text", "INSERT INTO orders VALUES (2, 'x', 'n')")
    follower.await_staged()
    pipeline.execute("INSERT INTO orders VALUES (3, 'y', 'n')", "INSERT INTO plain VALUES (2, 'b')")
    follower.await_staged()
    follower.end()
    rows = pipeline.table_rows()
    assert {table: row.life.is_parked for table, row in rows.items() if row.life.is_parked} == {"public.orders": True}
    assert [row["id"] for row in pipeline.staged("public.orders")] == [1, 2, 3]
    assert [row["id"] for row in pipeline.staged("public.plain")] == [1, 2]


def test_chunks_of_a_backfill_are_claimed_in_the_middle_of_a_run(
    pipeline: Pipeline, following: Callable[..., Follower]
) -> None:
    pipeline.execute(ORDERS, "INSERT INTO orders SELECT i, i, 'n' FROM generate_series(1, 50) i")
    pipeline.sound()
    follower = following()
    follower.await_staged()
    (backfill,) = pipeline.plan()
    pipeline.execute("UPDATE orders SET note = 'm' WHERE id = 7")
    pipeline.read()
    pipeline.execute("DELETE FROM orders WHERE id = 8")
    follower.await_staged()
    claims = [claim for manifest in pipeline.manifests() for table in manifest.tables for claim in table.claims]
    assert {claim.backfill for claim in claims} == {backfill.backfill}
    assert sum(claim.rows for claim in claims) == 50
    follower.end()


def test_a_stream_that_the_source_ends_fails_the_try_and_the_next_one_stages_the_rest(
    pipeline: Pipeline, following: Callable[..., Follower]
) -> None:
    begin(pipeline)
    follower = following()
    pipeline.execute("INSERT INTO orders VALUES (1, 1, 'n')")
    follower.await_staged()
    slot = pipeline.config.slot
    pipeline.execute(
        f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'",
    )
    pipeline.execute("INSERT INTO orders VALUES (2, 1, 'n')")
    follower.thread.join(60)
    assert isinstance(follower.error, TidemarkError)
    again = following()
    again.await_staged()
    again.end()
    assert [row["id"] for row in pipeline.staged("public.orders")] == [1, 2]


def follow_and_die(failpoint: str, run: Run, window: FollowWindow) -> None:
    os.environ[failpoints.VARIABLE] = failpoint
    follow(run, window)


@pytest.mark.parametrize("failpoint", ["drain.after_manifest", *thorough("drain.before_files", "drain.after_register")])
def test_the_next_try_of_a_killed_one_stages_every_change_once(
    pipeline: Pipeline, following: Callable[..., Follower], failpoint: str
) -> None:
    begin(pipeline)
    following().end()
    pipeline.execute("INSERT INTO orders VALUES (1, 1, 'n')")
    now = datetime.now(UTC)
    window = FollowWindow(now, now + timedelta(hours=1), 0.05)
    run = pipeline.task("drain", "following", holder="following/drain")
    process = fork_server().Process(target=follow_and_die, args=(failpoint, run, window))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    pipeline.execute("INSERT INTO orders VALUES (2, 1, 'n')")
    follower = following()
    follower.await_staged()
    result = follower.end()
    assert [row["id"] for row in pipeline.staged("public.orders")] == [1, 2]
    assert [end for _, end in result.batches[:-1]] == [start for start, _ in result.batches[1:]]


def test_the_retry_of_one_whose_window_is_over_does_nothing(
    pipeline: Pipeline, following: Callable[..., Follower]
) -> None:
    begin(pipeline)
    batches = following().end().batches
    pipeline.execute("INSERT INTO orders VALUES (1, 1, 'n')")
    follower = following()
    follower.is_over = True
    assert follower.end().batches == batches or pipeline.staged("public.orders")


def test_a_window_ends_when_the_next_run_has_had_time_to_start() -> None:
    handover = timedelta(seconds=HANDOVER_S)
    began_at = datetime(2026, 2, 28, 23, 50, 30, tzinfo=UTC)
    assert window_of("*/15 * * * *", 2, began_at).ends_at == datetime(2026, 3, 1, tzinfo=UTC) + handover
    late = datetime(2026, 2, 28, 23, 59, 30, tzinfo=UTC)
    assert window_of("*/15 * * * *", 2, late).ends_at == datetime(2026, 3, 1, 0, 15, tzinfo=UTC) + handover
    assert window_of("@continuous", 2, began_at).ends_at == began_at + timedelta(seconds=OTHERWISE_S)


def test_a_run_that_begins_tomorrow_is_over() -> None:
    """The clock was put back."""
    began_at = datetime(2026, 3, 1, tzinfo=UTC)
    window = window_of("*/15 * * * *", 2, began_at)
    assert window.left_s(began_at - timedelta(seconds=30)) > 0, "another machine's clock"
    assert window.left_s(began_at - timedelta(days=1)) == 0
