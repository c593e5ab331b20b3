"""What the tasks of a run that follows the source make of results, of applications that end, of changed files, and of
other runs. Cycles, ledger, Airflow's answers and spark-submit are given by the test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time import task_runner

from tests.airflow.conftest import FOLLOWING
from tests.support.airflow_home import postgres_connection
from tidemark.backfill import backfill_requests
from tidemark.backfill.backfill_requests import RequestedTable
from tidemark.capture import drain, table_progress
from tidemark.capture.drain import DrainResult
from tidemark.capture.following import changed_file, drain_cycles, follower_wait, merge_cycles
from tidemark.capture.following.merge_cycles import Application, MergeCycle, MergeCycles
from tidemark.capture.following.unpublished_tables import UnpublishedTables
from tidemark.capture.following.window import HANDOVER_S, window_of
from tidemark.capture.merge_planning import Ingested, IngestedTable
from tidemark.config.file_reader import load
from tidemark.errors import (
    ChangesGone,
    DatabaseRefused,
    MalformedMessage,
    PreflightFailed,
    ReplicationFailed,
    SlotMissing,
    SlotUnknown,
    SourceInRecovery,
    SparkApplicationFailed,
    TidemarkError,
)
from tidemark.findings import Finding, Report
from tidemark.formats.error_record import ErrorRecord
from tidemark.lsn import Lsn
from tidemark.observe import run_verdict
from tidemark.run import Run
from tidemark_airflow.assets import pipeline_alias
from tidemark_airflow.dag_factory import backfill_dag, capture_dag, verify_dag
from tidemark_airflow.operators import capture_operators, following_operators
from tidemark_airflow.operators.capture_operators import MERGE_WAIT_S, ConfirmOperator, DrainOperator
from tidemark_airflow.operators.following_operators import (
    APPLICATIONS,
    FollowDrainOperator,
    FollowMergeOperator,
    FollowPreflightOperator,
)
from tidemark_airflow.version_compat import AirflowFailException, AirflowSkipException

SOURCE: Any = object()  # a connection that no test uses
Cycles = Callable[[int], Iterator[MergeCycle]]


def context_of(
    task: str, *, tries: int = 1, airflow: Airflow | None = None, began_ago: timedelta = timedelta(0)
) -> Any:
    answers = airflow or Airflow()
    ti = SimpleNamespace(
        dag_id="shop_capture",
        run_id="manual__1",
        task_id=task,
        map_index=-1,
        try_number=tries,
        get_dr_count=answers.get_dr_count,
        get_task_states=answers.get_task_states,
    )
    dag_run = SimpleNamespace(run_type="scheduled", start_date=datetime.now(UTC) - began_ago, triggering_user_name=None)
    return {"ti": ti, "dag_run": dag_run}


@dataclass
class Airflow:
    """A task instance: how many runs of its DAG are queued or running, and the state of this run's merge."""

    queued: int = 0
    running: int = 1
    merge: str = "running"
    is_away: bool = False

    def get_dr_count(self, dag_id: str, states: list[str]) -> int:
        if dag_id == "shop_backfill":
            return 0
        assert dag_id == "shop_capture"
        if self.is_away:
            raise ConnectionError
        return sum({"queued": self.queued, "running": self.running}[state] for state in states)

    def get_task_states(self, dag_id: str, task_ids: list[str], run_ids: list[str]) -> dict[str, dict[str, str]]:
        return {run_ids[0]: {task_ids[0]: self.merge}}


class Following:
    """The task; `cycles` gives those of the first application, of the second one, and so on."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = folder / "shop.yaml"
        file.write_text(FOLLOWING)
        self.operator = FollowMergeOperator(task_id="merge", config=load(file))
        self.applications = 0
        self.asked: Any = None  # the cycles, as the task made them
        self.cycles: Cycles = lambda _: iter(())
        monkeypatch.setattr(merge_cycles.MergeCycles, "results", lambda *asked: self._results(*asked))
        monkeypatch.setattr(FollowMergeOperator, "run_application", lambda *_: None)
        monkeypatch.setattr(table_progress, "advanced", lambda *_: [])

    def _results(self, asked: MergeCycles, application: Application) -> Iterator[MergeCycle]:
        self.applications += 1
        self.asked = asked
        yield from self.cycles(self.applications)

    def between(self) -> bool:
        return self.asked.between()

    def execute(self, tries: int = 1) -> dict[str, Any]:
        added = SimpleNamespace(add=lambda *_: None)
        context = context_of("merge", tries=tries)
        context["outlet_events"] = {pipeline_alias("shop"): added}
        return self.operator.execute(context)


@pytest.fixture
def following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Following:
    for name in ("SHOP_SOURCE", "TIDEMARK_LEDGER"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", postgres_connection("host=h port=1 user=u dbname=d"))
    return Following(tmp_path, monkeypatch)


def cycle(plan: str, kind: str | None = None) -> MergeCycle:
    """The plan's one table, merged, or with an error."""
    error = None if kind is None else ErrorRecord(kind, "RETRY", "broken")
    table = IngestedTable("shop.orders", 1, Lsn(1), Lsn(2), {}, 1.0, error, parked=False)
    return MergeCycle(plan, (Ingested((plan,), (table,)),))


def test_where_application_after_application_meets_a_lake_that_fails_the_task_fails(following: Following) -> None:
    following.cycles = lambda number: iter([cycle(f"p{number}", "LakeFailed")])
    with pytest.raises(SparkApplicationFailed, match="broken"):
        following.execute()
    assert following.applications == APPLICATIONS


def test_a_lake_that_failed_in_the_last_plan_of_the_run_fails_the_task(following: Following) -> None:
    following.cycles = lambda number: iter([cycle("p1", "LakeFailed")] if number == 1 else [])
    with pytest.raises(SparkApplicationFailed, match="broken"):
        following.execute()


def test_a_lake_that_serves_again_is_no_failure(following: Following) -> None:
    failing = {
        1: [cycle("p1", "LakeFailed")],
        2: [cycle("p2", "LakeFailed")],
        3: [cycle("p3"), cycle("p4", "LakeFailed")],
    }
    following.cycles = lambda number: iter(failing.get(number, [cycle("p5")]))
    assert following.execute()["plans"] == 5


def test_an_error_of_one_table_stops_neither_the_task_nor_its_application(following: Following) -> None:
    following.cycles = lambda _: iter([cycle("p1", "MergeFailed"), cycle("p2")])
    assert following.execute() == {"plans": 2, "advanced": 0}
    assert following.applications == 1


def test_a_file_that_the_drain_has_not_accepted_is_not_taken_up(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted: list[str] = []
    monkeypatch.setattr(following_operators, "_is_in_force", lambda _, config: config.digest in accepted)
    monkeypatch.setattr(changed_file, "LOOK_S", 0.0)
    path = Path(following.operator.config.path)

    def cycles(number: int) -> Iterator[MergeCycle]:
        if number == 1:
            path.write_text(FOLLOWING.replace("shop.*", "shop.o*"))
            yield cycle("p1")
            assert not following.between()
            accepted.append(load(path).digest)
            assert following.between()
            path.write_text(FOLLOWING)  # by now it says again what it said
        else:
            yield cycle("p2")

    following.cycles = cycles
    assert following.execute()["plans"] == 2, "a file that is changed twice ends no merge"
    assert [rule.pattern for rule in following.operator.config.tables] == ["shop.o*"]


def test_a_later_try_of_the_merge_tells_before_it_may_fail_again(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined: list[str] = []
    monkeypatch.setattr(run_verdict, "examine", lambda run, **_: examined.append(run.run_id) or 1 / 0)
    monkeypatch.setattr(backfill_requests, "requested_tables", lambda *_, **__: [])

    def fails(number: int) -> Iterator[MergeCycle]:
        raise SparkApplicationFailed(plan="p", detail="it does not start")
        yield

    following.cycles = fails
    for tries, told in ((1, 0), (2, 1)):
        with pytest.raises(SparkApplicationFailed):
            following.execute(tries)
        assert len(examined) == told


def test_a_backfill_that_a_table_needs_is_started_in_the_middle_of_a_run(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    wanted = RequestedTable("shop.lines~2", "chunks", (), "its key changed", builds=True)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=sent.append), raising=False)
    monkeypatch.setattr(backfill_requests, "requested_tables", lambda *_, **__: [wanted])
    monkeypatch.setattr(following_operators, "WATCH_S", 0)

    def cycles(_: int) -> Iterator[MergeCycle]:
        yield cycle("p1")
        following.between()
        yield cycle("p2")

    following.cycles = cycles
    assert following.execute()["plans"] == 2
    assert {(message.dag_id, json.dumps(message.conf)) for message in sent} == {
        ("shop_backfill", '{"tables": ["shop.lines~2"]}')
    }


def test_a_later_try_tells_of_what_earlier_ones_merged(following: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow has no event of a try that was killed."""
    told: list[dict[str, tuple[Lsn | None, int]]] = []

    def table(name: str, before: int, rows: int) -> IngestedTable:
        return IngestedTable(name, 1, Lsn(before), Lsn(9), {"history": rows}, 0.0, None, parked=False)

    def advanced(_: Run, ingested: list[Ingested]) -> list[Any]:
        told.append({t.table: (t.before, t.rows["history"]) for one in ingested for t in one.tables})
        return []

    of_this_try = Ingested(("p2",), (table("shop.orders", 5, 1), table("shop.of_the_run_before", 6, 2)))
    monkeypatch.setattr(table_progress, "advanced", advanced)
    monkeypatch.setattr(table_progress, "merged_in_run", lambda _: Ingested((), (table("shop.orders", 1, 7),)))
    following.cycles = lambda _: iter([MergeCycle("p2", (of_this_try,))])
    following.execute()
    following.execute(tries=2)
    left = {"shop.of_the_run_before": (Lsn(6), 2)}
    assert told == [{"shop.orders": (Lsn(5), 1), **left}, {"shop.orders": (Lsn(1), 7), **left}]


@dataclass
class Followed:
    """A drain task whose cycles are the test's: `follow` gets what the library's function gets."""

    operator: FollowDrainOperator
    preflights: list[str] = field(default_factory=list)
    joins: bool = False
    has_new: bool = False
    follow: Callable[..., None] = lambda *_: None

    def execute(self, **about: Any) -> None:
        self.operator.execute(context_of("drain", **about))


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Followed:
    for name in ("SHOP_SOURCE", "TIDEMARK_LEDGER"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", postgres_connection("host=h port=1 user=u dbname=d"))
    file = tmp_path / "shop.yaml"
    file.write_text(FOLLOWING)
    task = Followed(FollowDrainOperator(task_id="drain", config=load(file)))

    def follow(run: Run, window: Any, *, wait_s: float, file: Any) -> DrainResult:
        task.follow(file.taken_up(run), window, file)
        return DrainResult([], 0, Lsn(1), reached_target=True)

    def preflighted(run: Run) -> Report:
        task.preflights.append(run.config.schedule or "")
        return Report.of("shop", run.config.path, (), 0.0)

    monkeypatch.setattr(drain_cycles, "follow", follow)
    monkeypatch.setattr(following_operators, "preflighted", preflighted)
    monkeypatch.setattr(following_operators, "_is_in_force", lambda *_: True)
    monkeypatch.setattr(following_operators, "_has_joins", lambda _: task.joins)
    monkeypatch.setattr(UnpublishedTables, "has_new", lambda *_: task.has_new)
    monkeypatch.setattr(following_operators, "ASK_S", 0)
    return task


def test_a_later_try_of_the_drain_begins_with_a_preflight(followed: Followed) -> None:
    followed.execute()
    assert followed.preflights == []
    followed.execute(tries=2)
    assert len(followed.preflights) == 1


def test_a_table_that_joined_in_the_stream_is_judged_in_the_middle_of_a_run(followed: Followed) -> None:
    def follow(run: Run, _window: Any, file: Any) -> None:
        assert not file.has_changed(SOURCE)
        followed.joins = True
        assert file.has_changed(SOURCE)
        assert file.taken_up(run) is run
        assert not file.has_changed(SOURCE), "what cannot be judged yet is not tried again at once"

    followed.follow = follow
    followed.execute()
    assert len(followed.preflights) == 1


def test_a_new_table_at_the_source_is_judged_in_the_middle_of_a_run(followed: Followed) -> None:
    def follow(run: Run, _window: Any, file: Any) -> None:
        assert not file.has_changed(SOURCE)
        followed.has_new = True
        assert file.has_changed(SOURCE)
        followed.has_new = False
        assert file.has_changed(SOURCE), "it was not judged yet"
        assert file.taken_up(run) is run
        assert not file.has_changed(SOURCE)

    followed.follow = follow
    followed.execute()
    assert len(followed.preflights) == 1


@pytest.mark.parametrize(
    ("error", "is_final"),
    [
        (ChangesGone(slot="s", generation=1, confirmed_lsn=Lsn(2), staged_lsn=Lsn(1)), False),
        (SlotMissing(slot="s"), False),
        (ReplicationFailed(detail="broken"), False),
        (SourceInRecovery(), False),
        (DatabaseRefused(database="source", detail="password authentication failed"), False),
        (PreflightFailed(pipeline="shop", count="2 errors", findings="", path="shop.yaml"), False),
        (SlotUnknown(slot="s", pipeline="shop", confirmed_lsn=Lsn(1), reader="nobody", path="shop.yaml"), True),
        (MalformedMessage(detail="broken"), True),
    ],
)
def test_what_the_next_run_would_mend_a_later_try_of_the_drain_mends(
    followed: Followed, error: TidemarkError, is_final: bool
) -> None:
    def follow(*_: Any) -> None:
        raise error

    followed.follow = follow
    with pytest.raises(type(error)) as raised:
        followed.execute()
    assert isinstance(raised.value, AirflowFailException) is is_final


@pytest.mark.parametrize(("about", "is_final"), [({"began_ago": timedelta(hours=1)}, True), ({}, False)])
def test_what_may_end_by_itself_is_waited_for_until_the_run_is_over(
    followed: Followed, about: dict[str, Any], is_final: bool
) -> None:
    def follow(*_: Any) -> None:
        raise SourceInRecovery()

    followed.follow = follow
    with pytest.raises(SourceInRecovery) as raised:
        followed.execute(**about)
    assert isinstance(raised.value, AirflowFailException) is is_final


def test_a_drain_without_its_source_gives_way_to_a_run_that_cannot_begin_before(followed: Followed) -> None:
    def follow(*_: Any) -> None:
        raise SourceInRecovery()

    followed.follow = follow
    with pytest.raises(SourceInRecovery) as raised:
        followed.execute(airflow=Airflow(queued=1))
    assert not isinstance(raised.value, AirflowFailException)
    one_after_the_other(followed.operator)
    with pytest.raises(AirflowFailException):
        followed.execute(airflow=Airflow(queued=1))


def test_a_merge_without_its_ledger_is_tried_again(following: Following) -> None:
    def refused(_: int) -> Iterator[MergeCycle]:
        raise DatabaseRefused(database="ledger", detail="password authentication failed")
        yield

    following.cycles = refused
    with pytest.raises(DatabaseRefused) as raised:
        following.execute()
    assert not isinstance(raised.value, AirflowFailException)


def test_a_preflight_without_its_source_is_tried_again_and_tells(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    def preflighted(_: Run) -> Report:
        refused = DatabaseRefused(database="source", detail="password authentication failed")
        return Report.of("shop", "shop.yaml", [Finding.of("source", refused)], 0.0)

    examined: list[str] = []
    monkeypatch.setattr(capture_operators, "preflighted", preflighted)
    monkeypatch.setattr(run_verdict, "examine", lambda run, **_: examined.append(run.run_id) or 1 / 0)
    monkeypatch.setattr(backfill_requests, "requested_tables", lambda *_, **__: [])
    preflight = FollowPreflightOperator(task_id="preflight", config=following.operator.config)
    for tries in (1, 2):
        with pytest.raises(DatabaseRefused) as raised:
            preflight.execute(context_of("preflight", tries=tries))
        assert not isinstance(raised.value, AirflowFailException)
        assert len(examined) == tries - 1
    one_after_the_other(preflight)
    with pytest.raises(AirflowFailException):
        preflight.execute(context_of("preflight", airflow=Airflow(queued=1)))


def one_after_the_other(operator: Any) -> None:
    """Give the operator a schedule with which Airflow starts one run at a time."""
    path = Path(operator.config.path)
    path.write_text(FOLLOWING.replace("*/15 * * * *", "@continuous"))
    operator.config = load(path)


@pytest.mark.parametrize("airflow", [Airflow(queued=1), Airflow(merge="failed")])
def test_a_drain_ends_where_another_run_waits_or_nothing_merges_any_more(followed: Followed, airflow: Airflow) -> None:
    left: list[float] = []
    one_after_the_other(followed.operator)
    followed.follow = lambda _run, window, _file: left.append(window.left_s(datetime.now(UTC)))
    followed.execute()
    followed.execute(airflow=Airflow(merge="up_for_retry"))
    followed.execute(airflow=Airflow(is_away=True))
    assert min(left) > 0
    followed.execute(airflow=airflow)
    assert left[-1] == 0


@pytest.mark.parametrize(
    ("airflow", "goes_on"),
    [
        (Airflow(running=2), True),
        (Airflow(queued=1), True),
        (Airflow(is_away=True), True),
        (Airflow(), False),  # the DAG is paused, or this is a run of `airflow dags test`
    ],
)
def test_a_drain_goes_on_beyond_its_time_while_the_next_run_starts(
    followed: Followed, airflow: Airflow, goes_on: bool
) -> None:
    left: list[float] = []

    def follow(_run: Run, window: Any, _file: Any) -> None:
        began_at = window.began_at
        due_at = window_of("*/15 * * * *", 2, began_at).ends_at - timedelta(seconds=HANDOVER_S)
        left.extend(window.left_s(due_at + timedelta(seconds=after_s)) for after_s in (-20, 20, 40, HANDOVER_S + 1))

    followed.follow = follow
    followed.execute(airflow=airflow)
    assert [left_s > 0 for left_s in left] == [True, True, goes_on, False]


def test_another_pace_or_schedule_holds_in_the_middle_of_a_run(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_file, "LOOK_S", 0.0)
    path = Path(followed.operator.config.path)

    def follow(run: Run, window: Any, file: Any) -> None:
        now = datetime.now(UTC)
        path.write_text(FOLLOWING.replace("every: 2s", "every: 5s").replace("*/15 * * * *", "0 0 1 1 *"))
        assert file.has_changed(SOURCE)
        run = file.taken_up(run)
        assert (window.every_s, window.left_s(now) > 3600) == (5, True)
        path.write_text(FOLLOWING.replace("follow: {every: 2s}", ""))
        file.taken_up(run)
        assert window.left_s(now) == 0

    followed.follow = follow
    followed.execute()
    assert followed.preflights == ["0 0 1 1 *", "*/15 * * * *"]


def yielding(following: Following, monkeypatch: pytest.MonkeyPatch, *, follows: bool) -> list[dict[str, float]]:
    """What the tasks of a backfill ask for, beside a run that follows or without one."""
    asked: list[dict[str, float]] = []

    def wait_for_follower(run: Run, **limits: float) -> bool:
        assert run.run_id == "shop_capture/manual__1"
        asked.append(limits)
        return follows

    monkeypatch.setattr(follower_wait, "wait_for_follower", wait_for_follower)
    return asked


@pytest.mark.parametrize(
    ("operator", "limits"), [(DrainOperator, {"wait_s": MERGE_WAIT_S}), (ConfirmOperator, {})], ids=["drain", "confirm"]
)
def test_tasks_of_a_backfill_are_skipped_where_a_run_that_follows_has_merged_it(
    following: Following,
    monkeypatch: pytest.MonkeyPatch,
    operator: type[DrainOperator | ConfirmOperator],
    limits: dict[str, float],
) -> None:
    asked = yielding(following, monkeypatch, follows=True)
    task = operator(task_id="a_task", config=following.operator.config, yields_to_follower=True)
    with pytest.raises(AirflowSkipException, match="No backfill or verify of this run is open any more"):
        task.execute(context_of("a_task"))
    assert asked == [limits]


@pytest.mark.parametrize("yields", [True, False])
def test_the_drain_of_a_backfill_works_where_no_run_follows_and_a_captures_always(
    following: Following, monkeypatch: pytest.MonkeyPatch, yields: bool
) -> None:
    asked = yielding(following, monkeypatch, follows=not yields)
    monkeypatch.setattr(drain, "drain", lambda *_, **__: DrainResult([], 0, Lsn(16), reached_target=True))
    task = DrainOperator(task_id="drain", config=following.operator.config, yields_to_follower=yields)
    assert task.execute(context_of("drain"))["staged_lsn"] == "0/10"
    assert len(asked) == yields


@pytest.mark.parametrize("purpose", ["backfill", "verify"])
@pytest.mark.parametrize("applications", [1, 2])
def test_the_tasks_of_a_backfill_and_of_a_verify_yield_and_those_of_a_capture_do_not(
    following: Following, purpose: str, applications: int
) -> None:
    config = following.operator.config
    config = replace(config, follow=None, merge=config.merge.model_copy(update={"applications": applications}))
    reads = {"backfill": backfill_dag, "verify": verify_dag}[purpose](config)
    for dag, yields in ((reads, True), (capture_dag(config), False)):
        tasks = [dag.get_task("drain"), dag.get_task("confirm")]
        assert [task.yields_to_follower for task in tasks] == [yields, yields]
