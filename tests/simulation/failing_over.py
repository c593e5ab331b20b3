"""A play whose source is restarted, crashed, and taken over by its standby, with and without the newest of its WAL.

The pair is a chain: whoever is promoted gets a standby of its own, and a slot that was not carried over in time is a
gap that the pipeline has to say. What it says then, once, is raised as an error: the play goes on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from sandbox.services.postgres import PostgresServer, wait_for
from tests.simulation.backfilling import TOLD, Play
from tests.simulation.workload import SCHEMA
from tests.support.capture import Environment
from tests.support.standby import Standby, standby_of
from tidemark.errors import BackfillError, ChangesGone, SlotMissing, SourceReplaced

CARRIED_OVER_S = 60
AT_FIRST_S = 300
GAPS = (*TOLD, BackfillError, SlotMissing)


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
    """`chain` is made once the pipeline has begun."""

    chain: Chain
    carried = True  # the slot, by the last promotion; there was none yet
    gaps = False  # whether a standby is promoted that may not have the slot: all rows are read again then

    def begin(self) -> None:
        super().begin()
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
        return self.fail_over(wanted=not self.gaps, loses=self.random.random() < 0.6)

    def fail_over(self, *, wanted: bool, loses: bool) -> str:
        """`wanted`: the standby is given the time to have the slot. `loses`: it lacks what the lake has."""
        chain = self.chain
        if wanted:
            self.release()
        carried = wanted and chain.carry_over()
        if loses:
            chain.standby.fall_behind()
            lost: list[Callable[[], object]] = [self._lost_run, self._lost_chunks, self._lost_truncate, self._join]
            for step in [self._lost_run, *self.random.choices(lost, k=self.random.randint(0, 2))]:
                self.workload.some(self.random.randint(3, 10))
                with suppress(*TOLD):
                    try:
                        step()
                    except (BackfillError, SlotMissing) as gap:
                        self._take(gap)
            self.workload.some(self.random.randint(0, 4))
        else:
            self.workload.settle()
            chain.catch_up()
        chain.promote()
        self.carried = carried
        self._forget_what_hung()
        self.workload.some(self.random.randint(0, 6))
        chain.follow()
        return f"fail over (slot carried over: {carried}, loses: {loses})"

    def _lost_run(self) -> None:
        """Of what the next primary will not have: what the lake has of it is more or less."""
        for stage in self.random.choice([["drain"], ["drain", "merge"], ["drain", "merge", "confirm"]]):
            self.environment.step(stage)

    def _lost_truncate(self) -> None:
        self.workload.settle()
        self.environment.execute(f"TRUNCATE {self.random.choice([SCHEMA + '.pair', SCHEMA + '.whole'])}")
        self._lost_run()

    def _lost_chunks(self) -> None:
        """Rows that the next primary will not have, not claimed yet."""
        self._plan()
        self._read()

    def _forget_what_hung(self) -> None:
        """Its session ended with the server."""
        self.hung = None
