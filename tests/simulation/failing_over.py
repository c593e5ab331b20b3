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
from tests.support.capture import Environment
from tests.support.standby import Standby, standby_of
from tidemark.errors import BackfillError, SlotMissing

CARRIED_OVER_S = 15
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
            with suppress(*GAPS):
                self.environment.run()
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

    def begin(self) -> None:
        super().begin()
        assert self.chain.carry_over(AT_FIRST_S), "nothing is open, and the slot was not carried over"

    def act(self) -> None:
        try:
            super().act()
        except (BackfillError, SlotMissing) as gap:
            self.acts.append(f"was told {type(gap).__name__}")

    def once_gaps_are_said(self, task: Callable[[], Any]) -> Any:
        for _ in range(4):
            with suppress(BackfillError, SlotMissing):
                return task()
        return task()

    def _run_to_its_end(self) -> None:
        self.once_gaps_are_said(super()._run_to_its_end)

    def _acts(self) -> list[Callable[[], str | None]]:
        return [*super()._acts(), *[self._crash] * 3, *[self._fail_over] * 5]

    def _crash(self) -> str:
        """Of the server; what hangs is visible from then on."""
        mode = self.random.choice(["immediate", "immediate", "fast"])
        self.environment.close()
        self.chain.primary.stop(mode)
        self._forget_what_hung()
        self.chain.primary.start()
        return f"{mode} restart"

    def _fail_over(self) -> str:
        chain = self.chain
        loses = self.random.random() < 0.6
        wanted = self.random.random() < 0.85
        if wanted and self.hung is None:
            self.workload.settle()
        carried = wanted and chain.carry_over()
        if loses:
            chain.standby.fall_behind()
            self.workload.some(self.random.randint(1, 10))
            with suppress(*GAPS):
                for stage in self.random.choice([[], ["drain"], ["drain", "merge"], ["drain", "merge", "confirm"]]):
                    self.environment.step(stage)
            self.workload.some(self.random.randint(0, 4))
        else:
            self.workload.settle()
            chain.catch_up()
        chain.promote()
        self._forget_what_hung()
        self.workload.some(self.random.randint(0, 6))
        chain.follow()
        return f"fail over (slot carried over: {carried}, loses: {loses})"

    def _forget_what_hung(self) -> None:
        """Its session ended with the server."""
        self.hung = None
