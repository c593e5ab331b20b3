"""Random acts of a pipeline and its backfills, while writers go on and tables are altered: what all simulations of
backfills play.

`Play` holds the pipeline, the seed's random numbers and what is under way: the backfill run that tasks belong to, the
commit that hangs. An act that ends with an error is one that a person or the next run makes up for."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from fractions import Fraction
from random import Random
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from tests.simulation import altering
from tests.simulation.altering import Altered
from tests.simulation.workload import SCHEMA, TABLES, Workload, create_tables
from tests.support import failpoint_names, judge
from tests.support.capture import Environment
from tests.support.hung_commit import HungCommit
from tidemark import failpoints
from tidemark.backfill.backfill_requests import requested_tables
from tidemark.backfill.range_reading import read_chunks
from tidemark.config import Merge
from tidemark.errors import BackfillClosed, BackfillIsOpen, BackfillRefused, CaptureNotBegun, LeaseTaken, RetryError
from tidemark.ledger.leases import hold, of_table
from tidemark.ledger.staged import batches
from tidemark.names import TableName
from tidemark.observe.table_commands import unpark

# What an act may end with: to try again, or with other fields in the form.
TOLD = (RetryError, BackfillClosed, BackfillIsOpen, BackfillRefused, CaptureNotBegun)

_ROWS = (
    "INSERT INTO plain SELECT i, 'old', i, repeat('o', 3000), repeat('p', 2500) FROM generate_series(1, 30) i",
    "INSERT INTO pair SELECT i % 3, i / 3, i, repeat('o', 3000) FROM generate_series(1, 20) i",
    "INSERT INTO whole SELECT i, 'old', i, repeat('o', 3000) FROM generate_series(1, 20) i",
    "INSERT INTO bag SELECT 'old', i % 3, repeat('o', 3000) FROM generate_series(1, 9) i",
    "INSERT INTO named SELECT i, 'k' || i, i, repeat('o', 3000) FROM generate_series(1, 20) i",
    "INSERT INTO log SELECT i % 3, 'old' FROM generate_series(1, 9) i",
    "INSERT INTO parts SELECT i, 'old', repeat('o', 3000) FROM generate_series(1, 20) i",
    "INSERT INTO moment SELECT '2024-01-01'::timestamptz + i * '1 us'::interval, '2024-01-02', '{}', '{1}', '\\x00' "
    "FROM generate_series(1, 9) i",
)

# A transaction that changed nothing does not wait for a standby.
_CERTAINLY_A_CHANGE = "SELECT pg_logical_emit_message(true, 'simulation', '')"

RULES = (*TABLES, *altering.RULES)
HISTORY_ONLY = f"{SCHEMA}.log"
MOST_GENERATIONS = 9


class Died(BaseException):
    """Stands for the death of a process; no handler of an Exception sees it."""


class Play:
    """`acts` says what was done, for the message of a seed that fails."""

    def __init__(
        self,
        environment: Environment,
        random: Random,
        monkeypatch: pytest.MonkeyPatch,
        *,
        verifies: bool = False,
        at_the_same_time: bool = False,
        alters: bool = True,
    ) -> None:
        self.verifies = verifies
        self.at_the_same_time = at_the_same_time  # several applications of a run
        self.environment = environment
        self.random = random
        self.monkeypatch = monkeypatch
        self.acts: list[str] = []
        self.rules = RULES if alters else TABLES
        self.names = tuple(rule.pattern for rule in self.rules)
        self.altered = Altered(environment, random)
        self.workload = Workload(environment, random, altered=self.altered if alters else None)
        self.writer = Workload(environment, Random(random.random()), "writer")
        self.run_id: str | None = None
        self.hung: HungCommit | None = None
        self.unparked = False  # a table that is to be backfilled

    def begin(self) -> None:
        """Rows that are older than the capture, and a first run; a table or two join it later."""
        create_tables(self.environment)
        if self.workload.altered is not None:
            altering.create(self.environment)
        for statement in _ROWS:
            self.environment.execute(f"SET search_path = {SCHEMA}; {statement}")
        self.workload.some(5)
        self.workload.settle()
        later = set(self.random.sample(self.names, self.random.choice([0, 0, 1, 2])))
        self._capture(tuple(rule for rule in self.rules if rule.pattern not in later))
        self.environment.run()

    def act(self) -> None:
        """One thing that can happen, among transactions."""
        if self.random.random() < 0.8:
            self.workload.some(self.random.randint(1, 12))
        self.environment.let_leases_end()
        act = self.random.choice(self._acts())
        act_name = act.__name__.lstrip("_")
        try:
            with self._writing(self.random.choice([0, 10, 60])):
                act_name = act() or act_name
        except TOLD as error:
            act_name += f" ({type(error).__name__})"
        self.acts.append(act_name)

    def finish(self, wrongs: Callable[[list[str]], list[str]]) -> None:
        """Nobody writes any more; what is wanted is backfilled until nothing is. The tables that no mark excuses are
        right before that already."""
        self.release()
        self.environment.let_leases_end()
        self._capture(self.rules)
        self.environment.config = dataclasses.replace(self.environment.config, merge=Merge())
        if self.workload.altered is not None:
            for _ in range(2):  # what a first change of a later run shows of a rename
                self.altered.touch()
                self._run_to_its_end()
            self._unpark()
        self._run_until_nothing_waits()
        rows = judge.captured(self.environment)
        differences = wrongs(
            [
                table
                for table, row in rows.items()
                if judge.marked(row) is None and not (self.unparked and _is_item(table))
            ]
        )
        assert differences == [], f"before the last backfills: {differences}; acts {self.acts}; {self.altered.altered}"
        if self.unparked:
            self.environment.backfill(altering.ITEM, replace=True)
        for _ in range(5):
            if not requested_tables(self.environment.task()):
                return
            self.environment.let_leases_end()
            self.environment.backfill(chunk_rows=self.random.choice([1, 3, 100]))
            self.environment.run()
        raise AssertionError(f"still wanted: {requested_tables(self.environment.task())}")

    def _run_until_nothing_waits(self) -> None:
        """A plan is of one generation, and what was parked may wait in several."""
        for _ in range(MOST_GENERATIONS):
            self._run_to_its_end()
            merging = [name for name, row in judge.captured(self.environment).items() if not row.life.is_parked]
            with self.environment.ledger_connection() as book:
                if not batches.unapplied_counts(book, merging):
                    return

    def _run_to_its_end(self) -> None:
        self.environment.run()

    def once_more(self) -> set[str]:
        """Read everything again that may be read twice; the ids of these backfills."""
        tables = tuple(name for name in self.names if name != HISTORY_ONLY)
        self.environment.begin_backfill(*tables, chunk_rows=4)
        opened = {backfill.backfill for backfill in self.environment.plan()}
        self.environment.read()
        self.environment.end_backfill()
        return opened

    def release(self) -> None:
        """End everything that is under way at the source."""
        if self.hung is not None:
            self.hung.release()
            self.hung = None
        self.workload.settle()
        self.writer.settle()

    # --- the acts -------------------------------------------------------------------------------------------------

    def _acts(self) -> list[Callable[[], str | None]]:
        weighted: list[tuple[Callable[[], str | None], int]] = [
            (self._run, 2),
            (self._stage, 3),
            (self._plan, 4),
            (self._read, 4),
            (self._two_readers, 2),
            (self._die, 6),
            (self._end, 2),
            (self._hang, 4),
            (self._join, 1),
            (self._defer, 2),
            (self._run_by_hand, 1),
            (self._share_out, 4),
            (self._unpark, 1),
            (self.verify, 4 * self.verifies),
        ]
        return [act for act, weight in weighted for _ in range(weight)]

    def _run(self) -> None:
        self.environment.run()

    def _stage(self) -> str:
        stage = self.random.choice(["preflight", "drain", "drain", "merge", "confirm"])
        self.environment.step(stage)
        return stage

    def _plan(self) -> str:
        request: dict[str, Any] = {"chunk_rows": self.random.randint(1, 6)}
        captured = [rule.pattern for rule in self.environment.config.tables]
        tables = tuple(self.random.sample(captured, self.random.randint(0, 4)))
        if tables and self.random.random() < 0.2 and f"{SCHEMA}.plain" in captured:
            keys = tuple((self.random.randint(1, 30),) for _ in range(self.random.randint(1, 9)))
            tables, request = (f"{SCHEMA}.plain",), {"mode": "keys", "keys": keys}
        if HISTORY_ONLY not in tables:
            request["replace"] = self.random.random() < 0.4
        self.environment.begin_backfill(*tables, **request)
        self.run_id = self.environment.report.run_id
        self.environment.plan()
        return f"plan {tables} {request}"

    def _read(self) -> None:
        self._of_backfill()
        self.environment.read()

    def _two_readers(self) -> None:
        self._of_backfill()
        failed: list[BaseException] = []

        def work(number: int) -> None:
            try:
                read_chunks(self.environment.task(f"read_{number}", self.environment.report.run_id))
            except TOLD:
                pass
            except BaseException as error:
                failed.append(error)

        readers = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        if failed:
            raise failed[0]

    def _die(self) -> str:
        name = self.random.choice(failpoint_names.NAMES)
        after = self.random.choice([0, 0, 1, 2, 5])
        with self._dying_at(name, after):
            try:
                if name in failpoint_names.OF_A_BACKFILL:
                    self._plan() if name.startswith("plan.") or self.run_id is None else self._of_backfill()
                    self.environment.read()
                else:
                    self.environment.begin_run()
                    self.environment.drain()
                    self.environment.merge()
                    self.environment.confirm()
            except Died:
                return f"died at {name}, {after} passed"
        return f"was to die at {name}, {after} passed"

    def _end(self) -> None:
        self._of_backfill()
        self.environment.end_backfill()

    def _hang(self) -> str:
        """A commit in the WAL that nobody sees, from now on for some acts; or its end."""
        if self.hung is not None:
            self.hung.release()
            self.hung = None
            return "release"
        try:
            changes = ["SET LOCAL lock_timeout = '100ms'", *self.workload.changes(self.random.randint(1, 5))]
            self.hung = HungCommit(self.environment.source, [*changes, _CERTAINLY_A_CHANGE])
        except psycopg.Error:
            return "nothing hangs"
        if self.random.random() < 0.6:
            planned = self._plan()
            self._read()
            return f"hang, {planned}, read"
        return "hang"

    def verify(self, share: Fraction | None = None) -> str:
        """Nothing that a verify finds to differ may be there: nobody touches the lake."""
        report = self.environment.verify(share=share or self.random.choice([Fraction(1), Fraction(1, 3)]))
        excused = {table for table, row in judge.captured(self.environment).items() if judge.marked(row) is not None}
        proven = [one for one in report.tables if one.unproven is None and one.table not in excused]
        differing = [str(one) for one in proven if one.outcome.differences]
        assert differing == [], f"acts {self.acts}"
        return f"verify of {len(report.tables)} tables"

    def _defer(self) -> str:
        """The file says otherwise from now on when a table is merged. What waits for the clock waits to the end."""
        rows = self.random.choice([3, 20])
        merge = self.random.choice([Merge(), Merge(every="1d"), Merge(every="1d", rows=rows)])
        self.environment.config = dataclasses.replace(self.environment.config, merge=merge)
        return f"defer {merge}"

    def _run_by_hand(self) -> None:
        self.environment.run(by_hand=True)

    def _share_out(self) -> str:
        """A run with several applications at the same time: one may die, somebody else may hold a table. Where one died
        it may be cleared, else the run confirms."""
        self.environment.begin_run()
        self.environment.drain()
        names = [rule.pattern for rule in self.environment.config.tables]
        self.random.shuffle(names)
        count = self.random.choice([2, 3])
        groups = [names[number::count] for number in range(count)]
        held = self.random.choice([None, names[0]])
        deadly = self.random.choice([None, *(name for name in failpoint_names.OF_CAPTURE if name.startswith("merge."))])
        with ExitStack() as stack:
            if held is not None:
                place = self.environment
                stack.enter_context(hold(place.ledger, place.config.pipeline, of_table(held), "compact"))
            if deadly is not None:
                stack.enter_context(self._dying_at(deadly, self.random.choice([0, 0, 1, 3]), only_once=True))
            with ThreadPoolExecutor(count if self.at_the_same_time else 1) as pool:
                ends = list(pool.map(self._application, range(count), groups))
        outcome = f"{count} applications, {held} held, {deadly} deadly: {ends}"
        if "died" not in ends:
            self.environment.confirm()
        elif self.random.random() < 0.5:
            dead = ends.index("died")
            outcome += f", cleared: {self._application(dead, groups[dead])}"
        return outcome

    def _application(self, number: int, tables: list[str]) -> str:
        try:
            self.environment.merge_share(number, tables)
        except Died:
            return "died"
        except LeaseTaken:
            return "skipped"
        return "ended"

    def _join(self) -> None:
        self._capture(self.rules)
        self.environment.preflight()

    def _unpark(self) -> str:
        """What the remedy of a definition that is not followed says of a table with a key."""
        done = []
        for table, row in self.environment.table_rows().items():
            if row.life.is_parked:
                assert _is_item(table), f"{judge.marked(row)}; acts {self.acts}"
                unpark(self.environment.config, table, ledger=self.environment.ledger)
                self.unparked = True
                done.append(table)
        return f"unpark {done}"

    def _of_backfill(self) -> None:
        if self.run_id is None:
            self._plan()
        assert self.run_id is not None
        self.environment.begin_run(self.run_id)

    # --- how ------------------------------------------------------------------------------------------------------

    def _capture(self, tables: Any) -> None:
        self.environment.config = dataclasses.replace(self.environment.config, tables=tables)

    @contextmanager
    def _writing(self, most: int) -> Iterator[None]:
        """Transactions go on, in sessions of their own, while the block runs; `most` of them, so that it ends."""
        stop = threading.Event()

        def write() -> None:
            with suppress(psycopg.OperationalError):  # the server is gone, or another one now
                for _ in range(most):
                    if stop.is_set():
                        return
                    self.writer.some(1)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            with suppress(psycopg.OperationalError):  # its session may be one of the server before
                self.writer.settle()

    @contextmanager
    def _dying_at(self, name: str, after: int, *, only_once: bool = False) -> Iterator[None]:
        """The process dies when it comes to the failpoint for the time after `after` times; `only_once`: of several
        that come there the first."""
        left = [after]

        def kill(pid: int, signal: int) -> None:
            left[0] -= 1
            if left[0] == -1 or (left[0] < 0 and not only_once):
                raise Died(name)

        with self.monkeypatch.context() as patch:
            patch.setenv(failpoints.VARIABLE, name)
            patch.setattr(failpoints, "os", SimpleNamespace(environ=os.environ, getpid=os.getpid, kill=kill))
            yield


def _is_item(table: str) -> bool:
    """As whatever it is kept: a number of a column that a promotion lost may come back with another type."""
    return TableName.parse(table).at_source == TableName.parse(altering.ITEM)
