"""Many changes at once into a run that follows its source: `python -m benchmarks.bursts`.

A following run is at work, and its driver has merged for a while, when the burst comes: half of its changes in four
transactions of five tables each, the other half in commits of twenty. They are changes of twenty tables that exist:
as many updates as inserts, and some deletes. Beside it the same kind of burst waits, and an ordinary run of the same
pipeline drains, merges by spark-submit and confirms.

Ours is the time from the first commit of the burst, so the time in which the source writes its small transactions
counts. The other is the time from the run's start. Both end with the Delta version by which the last table's `current`
has everything. The stages are the library's own, as Airflow's tasks call them; neither has Airflow, which would take
its seconds for the ordinary run alone.

The large transactions are written before the first commit, in sessions of their own. Of a following run the server
has decoded them by then, as it has of every transaction that takes a while.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg

from benchmarks import workloads
from benchmarks.latency import FEW, be_busy, create_many, number_of, versions_of
from benchmarks.pairs import Benchmark, Goal, Meter, Pair, Pairs, Setting, Taken, in_turns, main
from benchmarks.pipeline import Pipeline, Refused, as_the_operator_submits, one_pipeline
from tidemark.capture.drain import of_run
from tidemark.capture.following.drain_cycles import follow
from tidemark.capture.following.merge_cycles import MergeCycles
from tidemark.capture.following.window import FollowWindow
from tidemark.ledger import followers
from tidemark.ledger.connection import open_ledger
from tidemark.lsn import Lsn
from tidemark.run import Run
from tidemark.spark_submit.plan_orders import PlanOrders, plan_orders
from tidemark.storage.store import Store
from tidemark.wait_log import Wait
from tidemark_airflow.driver import submission

TABLES: Final = 20
LARGE: Final = 4  # transactions
OF_LARGE: Final = TABLES // LARGE  # tables of each
SMALL: Final = 20  # changes of a small transaction: INSERTED, UPDATED, and the rest deleted
INSERTED: Final = 10
UPDATED: Final = 8
EVERY_S: Final = 2.0
WARM_S: Final = 20.0
ARRIVES_S: Final = 600
SLOT_WAIT_S: Final = 600.0  # for another DAG's task that was let in
WINDOW: Final = timedelta(hours=6)  # of a run that is ended before


@dataclass
class FollowingRun:
    """One run that follows its source until `end`: the drain and the merge are threads, the driver is a process."""

    pipeline: Pipeline
    is_over: bool = False
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pipeline.runs += 1
        self.window = FollowWindow(datetime.now(UTC), datetime.now(UTC) + WINDOW, EVERY_S)
        self.threads = [threading.Thread(target=self._guarded, args=(work,)) for work in (self._drain, self._merge)]
        for thread in self.threads:
            thread.start()

    def _task(self, name: str) -> Run:
        return replace(self.pipeline.task(name), now=self._now)

    def _now(self) -> datetime:
        return self.window.ends_at if self.is_over else datetime.now(UTC)

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as failed:
            self.errors.append(failed)
            self.is_over = True

    def _drain(self) -> None:
        follow(self._task("drain"), self.window, wait_s=SLOT_WAIT_S)

    def _merge(self) -> None:
        run = self._task("merge")
        with plan_orders(run, Store(run.config.lake)) as orders:
            application = Application(orders)
            cycles = MergeCycles(run, self.window, self.pipeline.task("drain").holder, lambda: bool(self.errors))
            try:
                for cycle in cycles.results(application):
                    errors = [table.error for one in cycle.ingested for table in one.tables if table.error is not None]
                    if errors:
                        raise Refused(str(errors[0]))
            finally:
                orders.end()
                application.thread.join()

    def is_at_work(self) -> bool:
        """Whether its driver is ready and its drain holds the slot."""
        with open_ledger(self.pipeline.ledger, self.pipeline.config.pipeline) as book:
            return followers.is_following(book)

    def staged_rows(self) -> int:
        with open_ledger(self.pipeline.ledger, self.pipeline.config.pipeline) as book:
            return of_run(book, self.pipeline.task("drain").run_id).rows

    def driver_pids(self) -> list[int]:
        children = psutil.Process().children(recursive=True)
        running = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
        return [child.pid for child in running if "follow_plans" in " ".join(child.cmdline())]

    def end(self) -> None:
        self.is_over = True
        for thread in self.threads:
            thread.join()
        if self.errors:
            raise self.errors[0]


class Application:
    """The driver that applies plan after plan."""

    def __init__(self, orders: PlanOrders) -> None:
        self._orders = orders
        self.thread = threading.Thread(target=self._submit)
        self.thread.start()

    def _submit(self) -> None:
        as_the_operator_submits("follow_plans", self._orders.manifest, submission.giving_memory_back())

    def is_ready(self) -> bool:
        return self._orders.is_ready()

    def order(self, plan: str) -> None:
        self._orders.order(plan)

    def has_ended(self) -> bool:
        return not self.thread.is_alive()


@contextmanager
def following(pipeline: Pipeline) -> Iterator[FollowingRun]:
    run = FollowingRun(pipeline)
    try:
        yield run
    finally:
        run.end()


@dataclass
class Bursts:
    """Bursts of `size` changes, one after the other."""

    pipeline: Pipeline
    connection: psycopg.Connection[Any]
    size: int
    number: int = 0

    def __post_init__(self) -> None:
        """Tables with rows, which a run has merged."""
        self.share = max(UPDATED, self.size // (4 * TABLES)) * 2  # changes of a table in a large transaction
        self.commits = max(TABLES, self.size // (2 * SMALL))
        create_many(self.connection, TABLES)
        self.pipeline.begin()
        for table in range(TABLES):
            self.connection.execute(f"INSERT INTO m{table} {workloads.ROWS}".encode(), (1, self.share))
        self.connection.execute(PROCEDURE.encode())
        self.pipeline.run()

    @property
    def changes(self) -> int:
        return TABLES * (self.share + 1) + self.commits * SMALL

    def comes(self) -> Arriving:
        """Write the large transactions, and commit them and all others."""
        first = 1 + self._greatest_id()
        with ExitStack() as stack:
            sessions = []
            for lowest in range(0, TABLES, OF_LARGE):
                session = stack.enter_context(psycopg.connect(self.pipeline.source))
                for table in range(lowest, lowest + OF_LARGE):
                    rows = (first, first + self.share // 2 - 1)
                    session.execute(f"INSERT INTO m{table} {workloads.ROWS}".encode(), rows)
                    changed = f"id <= {self.share} AND id % 2 = {self.number % 2}"
                    session.execute(f"UPDATE m{table} SET price = price + 1 WHERE {changed}".encode())
                sessions.append(session)
            self.number += 1
            began_at = time.time()
            for session in sessions:
                session.commit()
        self.connection.execute("SET synchronous_commit = off")
        self.connection.execute(f"CALL small_ones({self.commits}, {first + self.share}, {self.share})".encode())
        self.connection.execute("RESET synchronous_commit")
        last = self._commit_the_last()
        return Arriving([self.log(table) for table in range(TABLES)], began_at, time.time(), last)

    def _greatest_id(self) -> int:
        tables = " UNION ALL ".join(f"SELECT max(id) AS id FROM m{table}" for table in range(TABLES))
        return number_of(self.connection.execute(f"SELECT max(id) FROM ({tables})".encode()).fetchone())

    def _commit_the_last(self) -> Lsn:
        """One change of each table; an LSN above all other commits, and below this one."""
        with self.connection.transaction():
            for table in range(TABLES):
                self.connection.execute(f"UPDATE m{table} SET note = 'the last' WHERE id = 1".encode())
            row = self.connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        return Lsn.parse(str(row[0]))

    def log(self, table: int) -> Path:
        return self.pipeline.table("current", f"m{table}") / "_delta_log"


@dataclass(frozen=True)
class Arriving:
    """A burst that was committed, and the logs of the tables that are to have it."""

    logs: list[Path]
    began_at: float
    ended_at: float
    last: Lsn

    def arrived_at(self) -> float:
        """When the last table had everything; waits for it."""
        return max(applied_at(log, self.last) for log in self.logs)


def applied_at(log: Path, lsn: Lsn) -> float:
    """When the first version was written with which the table has everything below the LSN; waits for it."""
    waiting = Wait(ARRIVES_S, every_s=0.1)
    while not is_applied(max(log.glob("*.json")), lsn):
        if not waiting.pause(lambda: "the changes in Delta"):
            raise Refused(f"changes were not in Delta after {ARRIVES_S} s")
    return next(at for at, end in versions_of(log) if end >= int(lsn))


def is_applied(version: Path, lsn: Lsn) -> bool:
    transactions = (json.loads(line).get("txn", {}) for line in version.read_text().splitlines())
    return any(int(transaction.get("version", -1)) >= int(lsn) for transaction in transactions)


def pairs(setting: Setting) -> Pairs:
    with one_pipeline(setting.folder) as pipeline, psycopg.connect(pipeline.source, autocommit=True) as connection:
        bursts = Bursts(pipeline, connection, setting.size)
        facts: dict[str, float] = {}
        for number in range(setting.rounds):
            pair = in_turns(number, partial(into_a_following_run, bursts, facts), partial(before_a_run, bursts))
            yield Pair(pair.ours, pair.beside, {"changes": bursts.changes, **facts})


def into_a_following_run(bursts: Bursts, facts: dict[str, float]) -> Taken:
    """From the first commit on."""
    with following(bursts.pipeline) as run:
        for seconds in (1, min(WARM_S, bursts.size / 1_000)):  # the driver starts; it becomes warm
            committed = be_busy(bursts.connection, FEW, seconds)
            for table in range(TABLES):
                applied_at(bursts.log(table), max(lsn for of, _, lsn in committed if of == table))
        staged = run.staged_rows()
        meter = Meter(*run.driver_pids())
        arriving: list[tuple[Arriving, float]] = []

        def burst() -> None:
            comes = bursts.comes()
            arriving.append((comes, comes.arrived_at()))

        taken = meter.of(burst)
        if (rows := run.staged_rows() - staged) != bursts.changes:
            raise Refused(f"{rows:,} changes were staged of {bursts.changes:,}")
    ((comes, at),) = arriving
    facts |= {"writing_s": comes.ended_at - comes.began_at, "from_the_last_commit_s": at - comes.ended_at}
    return Taken(at - comes.began_at, taken.cpu_s)


def before_a_run(bursts: Bursts) -> Taken:
    """From the run's start on."""
    comes = bursts.comes()
    began_at = time.time()
    taken = Meter().of(bursts.pipeline.run)
    return Taken(comes.arrived_at() - began_at, taken.cpu_s)


# Commit after commit, of one table after the other, on the server: a client would take longer than what is measured.
PROCEDURE: Final = f"""
    CREATE PROCEDURE small_ones(howmany int, next_id bigint, old_rows bigint) LANGUAGE plpgsql AS $$
    DECLARE
        name text;
        first bigint;
        changed bigint[];
    BEGIN
        FOR n IN 0..howmany - 1 LOOP
            name := 'm' || n % {TABLES};
            first := next_id + n / {TABLES} * {INSERTED};
            changed := ARRAY(SELECT 1 + (n::bigint * 7919 + i) % old_rows FROM generate_series(1, {UPDATED}) i);
            EXECUTE 'INSERT INTO ' || name || $rows$ {workloads.ROWS.replace("%s::bigint, %s", "$1, $2") % ()} $rows$
                USING first, first + {INSERTED - 1};
            EXECUTE 'UPDATE ' || name || ' SET price = price + 1 WHERE id = ANY ($1)' USING changed;
            EXECUTE 'DELETE FROM ' || name || ' WHERE id IN ($1, $1 + 1)' USING first;
            COMMIT;
        END LOOP;
    END $$
"""

BENCHMARKS = (
    Benchmark(
        name="burst",
        what="changes at once into a run that follows, first commit to readable in Delta",
        beside="the same waiting for an ordinary run, from its start",
        goals=(Goal("ratio", 1),),
        unit="changes",
        sizes={"tiny": 1_600, "small": 150_000, "full": 1_500_000},
        pairs=pairs,
    ),
)

if __name__ == "__main__":
    main(BENCHMARKS, about=__doc__)
