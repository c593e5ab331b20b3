"""A play whose source is restarted, crashed, and taken over by its standby, with and without the newest of its WAL.

The pair is a chain: whoever is promoted gets a standby of its own, and a slot that was not carried over in time is a
gap that the pipeline has to say. What it says then, once, is raised as an error: the play goes on.

A promotion loses what was staged, or only what backfills and preflight had seen, or nothing; that some of each kind was
lost is certain, whatever else is. Behind one that lost what was staged the tables that nobody marked are looked at
before anything is read again that the pipeline did not ask for: a random backfill would heal what it should have said.
`happened` counts what the pipeline made of it."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer, wait_for
from tests.simulation.backfilling import HISTORY_ONLY, TOLD, Play
from tests.simulation.workload import SCHEMA
from tests.support import judge
from tests.support.capture import Environment
from tests.support.standby import Standby, standby_of
from tidemark import failpoints
from tidemark.capture.continuity import discontinuity
from tidemark.config import Merge, TableRule
from tidemark.errors import BackfillError, ChangesGone, SlotMissing, SourceForked, SourceReplaced
from tidemark.ledger.staged import generations

CARRIED_OVER_S = 60
AT_FIRST_S = 300
GAPS = (*TOLD, BackfillError, SlotMissing)

Loses = Literal["what was staged", "what was seen", "nothing"]

# Rows of their own, which the workload updates and truncates, and neither deletes nor moves: what both servers know,
# and what the next primary loses.
_COMMON: Final = (
    "INSERT INTO {schema}.parts (id, a) SELECT {n} + i, 'common' FROM generate_series(1, 3) i",
    "INSERT INTO {schema}.pair (x, y) VALUES (9, 'common {n}'), (9, 'deleted {n}')",
    "INSERT INTO {schema}.whole (id, a) VALUES ({n}, 'common')",
)
_LOST: Final = (
    "UPDATE {schema}.parts SET id = id + 50 WHERE id = {n} + 1",
    "UPDATE {schema}.parts SET a = 'lost' WHERE id = {n} + 2",
    "DELETE FROM {schema}.parts WHERE id = {n} + 3",
    "INSERT INTO {schema}.parts (id, a) VALUES ({n} + 4, 'lost')",
    "DELETE FROM {schema}.pair WHERE y = 'deleted {n}'",
)
# What is read of these rows in the part that is lost is a backfill of its tables, which are captured by then.
_READ_AND_LOST: Final = (f"{SCHEMA}.parts", f"{SCHEMA}.pair")
# More ids of transactions than are given out while a table is read on the next primary.
_LOST_IDS: Final = 150


@dataclass
class Chain:
    """The server that is the primary now, and its standby."""

    environment: Environment
    folder: Path
    primary: PostgresServer
    settings: dict[str, str]
    kept: ExitStack
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    told: Callable[[Exception], None] = lambda _: None  # what a run says, by which the slot is carried over
    standby: Standby = field(init=False)

    def __post_init__(self) -> None:
        self.database = str(psycopg.conninfo.conninfo_to_dict(self.environment.source)["dbname"])
        self.follow()

    def follow(self) -> None:
        """A standby of the primary, which waits for nothing."""
        name = f"standby_{next(self.numbers)}"
        started = standby_of(self.primary, self.folder / name, self.database, name=name, settings=self.settings)
        self.standby = self.kept.enter_context(started)

    def carry_over(self, seconds: float = CARRIED_OVER_S) -> bool:
        """Until the standby has the slot for good; False if something that is open at the source does not let it."""

        def carried_over() -> bool:
            self.environment.let_leases_end()
            self.environment.sql("SELECT pg_log_standby_snapshot()")
            try:
                self.environment.run()
            except (BackfillError, SlotMissing) as gap:
                self.told(gap)
            except TOLD:
                pass  # the next one goes on
            return self.standby.has_slot(self.environment.config.slot)

        try:
            return bool(wait_for("the slot was carried over", carried_over, seconds))
        except TimeoutError:
            return False

    def catch_up(self) -> None:
        end = str(self.environment.one("SELECT pg_current_wal_flush_lsn()::text"))
        wait_for("the standby has all", lambda: self.standby.replayed(end))

    def promote(self) -> None:
        """The primary dies, and its standby takes over."""
        self.environment.close()
        self.primary.stop("immediate")
        self.standby.promote()
        self.environment.source = self.standby.conninfo(self.database)
        self.primary = self.standby


class FailingOver(Play):
    """`chain` is made once the pipeline has begun, and `wrongs` says of tables what is wrong with them."""

    chain: Chain
    wrongs: Callable[[list[str]], list[str]]
    carried = True  # the slot, by the last promotion; there was none yet
    gaps = False  # whether a standby is promoted that may not have the slot

    def __init__(self, environment: Environment, random: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        super().__init__(environment, random, monkeypatch, **options)
        self.altered.fails_over = True
        self.happened: Counter[str] = Counter()
        self._numbers = itertools.count(1000, 100)
        self._count_what_is_followed()

    def _count_what_is_followed(self) -> None:
        follow, lost_part = generations.follow, discontinuity.lost_part

        def following(*about: Any, **options: Any) -> generations.FollowedPromotion:
            followed = follow(*about, **options)
            self.happened["followed"] += 1
            self.happened["chunks read again"] += followed.chunks
            self.happened["backfills begun anew"] += len(followed.backfills)
            self.happened["joins judged anew"] += len(followed.tables)
            return followed

        def losing(*about: Any) -> Any:
            lost = lost_part(*about)
            for keys in () if lost is None else lost.tables.values():
                self.happened["tables that lost rows" if keys else "tables that lost all"] += 1
            return lost

        self.monkeypatch.setattr(generations, "follow", following)
        self.monkeypatch.setattr(discontinuity, "lost_part", losing)

    def begin(self) -> None:
        super().begin()
        self._repair()
        self.chain.told = self._take
        assert self.chain.carry_over(AT_FIRST_S), "nothing is open, and the slot was not carried over"

    def act(self) -> None:
        try:
            super().act()
        except (BackfillError, SlotMissing) as gap:
            self._take(gap)

    def _take(self, gap: Exception) -> None:
        """Where the slot was carried over, what is lost is named, or nothing is: that is no gap, and not all tables are
        read again. The rows alone do not show it."""
        self.acts.append(f"was told {type(gap).__name__}")
        self.happened[type(gap).__name__] += 1
        if self.carried:
            assert not isinstance(gap, (SourceReplaced, ChangesGone, SlotMissing)), f"{gap}; acts {self.acts}"

    def once_gaps_are_said(self, task: Callable[[], Any]) -> Any:
        for _ in range(4):
            try:
                return task()
            except (BackfillError, SlotMissing) as gap:
                self._take(gap)
        return task()

    def _run_to_its_end(self) -> None:
        self.once_gaps_are_said(super()._run_to_its_end)

    def _acts(self) -> list[Callable[[], str | None]]:
        return [*super()._acts(), *[self._crash] * 3, *[self._fail_over] * 3]

    def _crash(self) -> str:
        """Of the server; what hangs is visible from then on."""
        mode = self.random.choice(["immediate", "immediate", "fast"])
        self.environment.close()
        self.chain.primary.stop(mode)
        self._forget_what_hung()
        self.chain.primary.start()
        return f"{mode} restart"

    def _fail_over(self) -> str:
        loses: list[Loses] = ["what was staged", "what was seen", "nothing"]
        return self.fail_over(wanted=not self.gaps, loses=self.random.choice(loses))

    def fail_over(self, *, wanted: bool, loses: Loses, proves: bool = False) -> str:
        """`wanted`: the standby is given the time to have the slot. `loses`: what the lake has of it, and the standby
        has not. `proves`: what is said of it is held to be all, and to be enough."""
        chain = self.chain
        number = next(self._numbers)
        if proves:
            self.release()
            self._repair()
        if loses == "what was seen":
            self._make_late(number)
        self._do_for_certain(_COMMON, number)
        if wanted:
            self.release()
        else:
            # There is a slot to be lost: the run that says of one that it is gone makes none yet.
            self._attempt(lambda: self.once_gaps_are_said(lambda: self.environment.step("preflight")))
        carried = wanted and chain.carry_over()
        forks = self.happened[SourceForked.__name__]
        if loses == "nothing":
            self.workload.settle()
            chain.catch_up()
        else:
            chain.catch_up()
            chain.standby.fall_behind()
            self._lose(number) if loses == "what was staged" else self._lose_what_was_seen(number)
        chain.promote()
        self.carried = carried
        self._forget_what_hung()
        if loses == "what was seen" and carried:
            self._read_on(number)
        self.workload.some(self.random.randint(0, 6))
        if proves:
            self._prove()
            if carried and loses == "what was staged":
                assert self.happened[SourceForked.__name__] > forks, f"nothing is said to be lost; acts {self.acts}"
        chain.follow()
        return f"fail over (slot carried over: {carried}, loses {loses})"

    def _do_for_certain(self, statements: Iterable[str], number: int) -> None:
        """A commit that hangs may hold the table, and nobody else ends it."""
        for template in statements:
            statement = template.format(schema=SCHEMA, n=number)
            try:
                self.environment.execute("SET lock_timeout = '1s'", statement)
            except psycopg.errors.LockNotAvailable:
                self.release()
                self.environment.execute(statement)
            self.environment.execute("RESET lock_timeout")

    # --- what is lost -------------------------------------------------------------------------------------------------

    def _lose(self, number: int) -> None:
        """Staged, and more or less of it merged and confirmed."""
        lost: list[Callable[[], object]] = [self._lost_run, self._lost_chunks, self._lost_truncate, self._join]
        steps = [self._lost_run, *self.random.choices(lost, k=self.random.randint(0, 2))]
        if not self.happened["truncates that were lost"]:
            steps.append(self._lost_truncate)
        for step in steps:
            self.workload.some(self.random.randint(3, 10))
            self._attempt(step)
        self._do_for_certain(_LOST, number)
        assert any(self._attempt(self._lost_run) for _ in range(5)), f"nothing was drained; acts {self.acts}"
        self.workload.some(self.random.randint(0, 4))

    def _attempt(self, step: Callable[[], object]) -> bool:
        self.environment.let_leases_end()
        try:
            step()
        except TOLD:
            return False
        except (BackfillError, SlotMissing) as gap:
            self._take(gap)
            return False
        return True

    def _lost_run(self) -> None:
        """Of what the next primary will not have: what the lake has of it is more or less."""
        for stage in self.random.choice([["drain"], ["drain", "merge"], ["drain", "merge", "confirm"]]):
            self.environment.step(stage)

    def _lost_truncate(self) -> None:
        self.workload.settle()
        captured = {rule.pattern for rule in self.environment.config.tables}  # at most two are not yet
        emptied = [name for name in ("pair", "whole") if f"{SCHEMA}.{name}" in captured] or ["named"]
        self._do_for_certain([f"TRUNCATE {{schema}}.{self.random.choice(emptied)}"], 0)
        self.happened["truncates that were lost"] += 1
        self._lost_run()

    def _lost_chunks(self) -> None:
        """Rows that the next primary will not have, not claimed yet."""
        self._plan()
        self._read()

    def _make_late(self, number: int) -> None:
        """A table with rows that joins while the standby still hears of it; and with it what is to be read, where the
        file does not name that yet."""
        late = f"{SCHEMA}.late_{number}"
        self.environment.execute(f"CREATE TABLE {late} (id int PRIMARY KEY)", f"INSERT INTO {late} VALUES (1), (2)")
        self.rules = (*self.rules, TableRule(late))
        self.names = (*self.names, late)
        named = self.environment.config.tables
        joins = [rule for rule in self.rules if rule.pattern in (late, *_READ_AND_LOST) and rule not in named]
        self._capture((*named, *joins))

    def _lose_what_was_seen(self, number: int) -> None:
        """No batch has any of it: a chunk of rows that were changed, a backfill whose own snapshot is beyond what the
        next primary has, and the look at a table that was found empty."""
        environment = self.environment
        self.workload.some(self.random.randint(3, 10))
        self.workload.settle()
        self._do_for_certain(_LOST, number)
        parts, pair = _READ_AND_LOST
        environment.begin_backfill(parts, chunk_rows=3, replace=True)
        self._attempt(environment.plan)
        self._attempt(environment.read)
        for _ in range(_LOST_IDS):
            environment.execute("SELECT pg_current_xact_id()")
        environment.begin_backfill(pair, chunk_rows=1, replace=True)
        self._attempt(environment.plan)
        self.run_id = environment.report.run_id
        environment.execute(f"TRUNCATE {SCHEMA}.late_{number}")
        self._attempt(environment.preflight)

    def _read_on(self, number: int) -> None:
        """The backfill that was begun in the lost part, while a row comes behind the reader in a transaction with an id
        that its snapshot has seen end."""
        self.once_gaps_are_said(lambda: self.environment.step("drain"))
        come = f"INSERT INTO {SCHEMA}.pair (x, y) VALUES (-9, '!{number}') ON CONFLICT DO NOTHING"
        assert self.run_id is not None
        self.environment.begin_run(self.run_id)
        with self._between_chunks(come):
            self._attempt(self.environment.read)

    @contextmanager
    def _between_chunks(self, statement: str) -> Iterator[None]:
        def happen(pid: int, signal: int) -> None:
            self.environment.execute(statement)

        with self.monkeypatch.context() as patch:
            patch.setenv(failpoints.VARIABLE, "read.after_chunk")
            patch.setattr(failpoints, "os", SimpleNamespace(environ=os.environ, getpid=os.getpid, kill=happen))
            yield

    def _repair(self) -> None:
        """Of a table that is marked for another reason nothing can be proven: what is wanted is read."""
        self._attempt(lambda: self.once_gaps_are_said(self.environment.run))
        self._attempt(self.environment.backfill)
        self._attempt(self.environment.run)

    # --- whether it was said ------------------------------------------------------------------------------------------

    def _prove(self) -> None:
        """A table that is not marked is right before anything is read again; and one of which rows are named is right
        once these rows were read."""
        self.release()
        self.environment.let_leases_end()
        deferred = self.environment.config.merge
        self.environment.config = dataclasses.replace(self.environment.config, merge=Merge())
        self._run_until_nothing_waits()
        rows = judge.captured(self.environment)
        # Of what has a history alone nothing is repaired, and a lost insert is no other row's.
        unmarked = [table for table, row in rows.items() if judge.marked(row) is None and table != HISTORY_ONLY]
        assert self.wrongs(unmarked) == [], f"and nobody said so; acts {self.acts}"
        named = [table for table, row in rows.items() if row.lost_keys is not None and not row.life.is_parked]
        self.happened["tables that needed nothing"] += len(unmarked)
        if named:
            self.happened["tables repaired by their keys"] += len(named)
            self.environment.let_leases_end()
            self.environment.backfill()
            self._run_until_nothing_waits()
            assert self.wrongs(named) == [], f"though the rows that were named were read again; acts {self.acts}"
        self.environment.config = dataclasses.replace(self.environment.config, merge=deferred)

    def _forget_what_hung(self) -> None:
        """Its session ended with the server."""
        self.hung = None
