"""Plans, orders and ingests merge after merge beside a drain that follows the source, until the run is over (R5, R6).

    ingest ──► plan, under the leases of its tables ──► order ──► result ──► ingest, the leases end ──┐
       ▲                                                                                              │
       └── something is staged, or `AGAIN_S` have passed ◄────────────────────────────────────────────┘

A cycle is the merge of every run (`capture.merge_planning`); only the application stays. A table that another task
waits for is left out until that task has had its turn. A table that failed is left out for `FAILED_S`, so that R6's
failed runs are as far from each other as those of runs by a schedule may be.

A plan's result is written when its last table is merged. So tables whose last merge took `SLOW_S` have plans of their
own, beside those of the others: two lanes, with one plan at a time in each.

Nothing is planned before the application is ready. Until then an earlier run goes on, from which this one takes over.

The run is over when its window is or a later run has taken over, its drain has staged up to a heartbeat and ended, and
nothing more can be merged now; and where its drain is not tried any more. While that is tried again, the merge waits
for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, Literal

from tidemark.capture import deferral
from tidemark.capture.following.run_end import is_over
from tidemark.capture.following.window import FollowWindow
from tidemark.capture.merge_planning import (
    Ingested,
    PlanScope,
    awaiting_their_name,
    ingest,
    ingested_by_another,
    leased_plan,
    may_be_planned,
)
from tidemark.errors import LeaseTaken, SparkApplicationFailed, SparkApplicationTooLong
from tidemark.formats import layout
from tidemark.ledger import followers, leases
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.leases import SLOT, of_table
from tidemark.ledger.staged import generations
from tidemark.run import Run
from tidemark.spark_submit.plan_orders import Application
from tidemark.storage.store import Store
from tidemark.wording import duration

log = logging.getLogger(__name__)

# How often it is looked whether something was staged: less often the longer nothing was.
LOOK_S: Final = 0.2
LOOK_AT_REST_S: Final = 0.5
LOOKS_PER_PAUSE: Final = 20
# How often a plan is tried although nothing was staged: tables come due, are let go by others, or are un-parked.
AGAIN_S: Final = 5.0
FAILED_S: Final = 60.0
# A table whose merge takes so long would hold back the others.
SLOW_S: Final = 5.0
# How often it is asked whether a drain that does not hold the slot is tried again.
ASK_S: Final = 10.0


Lane = Literal["quick", "slow"]
LANES: Final[tuple[Lane, ...]] = ("quick", "slow")


@dataclass(frozen=True, slots=True)
class MergeCycle:
    """A plan that was applied, and every result that was ingested with it."""

    plan: str
    ingested: tuple[Ingested, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _OrderedPlan:
    """A plan that has no result yet, and the leases of its tables."""

    lane: Lane
    plan: str
    tables: frozenset[str]
    began_at: float
    leases: ExitStack


@dataclass(slots=True)
class MergeCycles:
    """The cycles of one run; `drain_holder` is the name by which the run's drain holds the slot, and `drain_has_ended`
    says whether it is not tried any more.

    `between` is called between two of them, and while nothing is to be merged; says it True, they end, and may go on.
    """

    run: Run
    window: FollowWindow
    drain_holder: str
    drain_has_ended: Callable[[], bool]
    all_of_them: bool = False
    between: Callable[[], bool] = lambda: False
    pause: Callable[[float], None] = time.sleep
    _failed_until: dict[str, float] = field(default_factory=dict, init=False)
    _slow: frozenset[str] = field(default=frozenset(), init=False)
    _ordered: list[_OrderedPlan] = field(default_factory=list, init=False)
    _asked_at: float = field(default=float("-inf"), init=False)
    _has_taken_over: bool = field(default=False, init=False)

    def results(self, application: Application) -> Iterator[MergeCycle]:
        """Merge until the run is over, or `between` says so.

        Raises SparkApplicationFailed if the application ends before it has applied a plan, or SparkApplicationTooLong
        if it takes longer for one than it may.
        """
        try:
            with open_ledger(self.run.ledger, self.run.pipeline) as book:
                yield from self._results(book, application)
        finally:
            for ordered in self._ordered:
                ordered.leases.close()
            self._ordered.clear()

    def _results(self, book: Ledger, application: Application) -> Iterator[MergeCycle]:
        while not application.is_ready():
            self._check(application)
            self.pause(LOOK_S)
        if not self._has_taken_over and not self.drain_has_ended():
            followers.take_over(book, self.run.run_id, self.window.began_at)
            self._has_taken_over = True
        merged_at, ends = self.run.clock(), False
        while True:
            ends = ends or self.between()
            staged, tried_at, is_over = self._staged(book), self.run.clock(), self._is_over(book)
            if staged is not None:
                for cycle in self._ended(book):
                    merged_at = self.run.clock()
                    yield cycle
                if not ends:
                    self._order(book, application)
            if is_over and not self._ordered:
                return
            while not any(map(self._has_result, self._ordered)):
                self._check(application)
                if ends and not self._ordered:
                    return
                if not ends and any(map(self._is_free, LANES)) and self._may_order(book, staged, tried_at):
                    break
                ends = ends or self.between()
                self.pause(self._pause_s(merged_at))

    def _staged(self, book: Ledger) -> object:
        opened = generations.current(book)
        return None if opened is None else (opened.number, opened.staged_lsn)

    def _is_over(self, book: Ledger) -> bool:
        if leases.holders(book).get(SLOT) == self.drain_holder:
            return False
        if is_over(self.run, book, self.window):
            return True
        if self.run.clock() - self._asked_at < ASK_S:
            return False
        self._asked_at = self.run.clock()
        return self.drain_has_ended()

    def _ended(self, book: Ledger) -> list[MergeCycle]:
        """The plans that are applied, with their leases let go; and one without a name for what other tasks left."""
        ended = [ordered for ordered in self._ordered if self._has_result(ordered)]
        ingested = ingest(self.run)
        if ingested.plans:
            merged = [table.table for table in ingested.tables if table.error is None]
            deferral.apply_deferral(book, self.run.config, merged)
        ended += [ordered for ordered in self._ordered if ordered.plan in ingested.plans and ordered not in ended]
        cycles = [MergeCycle("", (ingested,))] if ingested.plans and not ended else []
        for ordered in ended:
            results = [ingested] if ordered is ended[0] else []
            if ordered.plan not in ingested.plans:
                results.append(ingested_by_another(self.run, ordered.plan))
            ordered.leases.close()
            self._ordered.remove(ordered)
            self._note(results)
            cycles.append(MergeCycle(ordered.plan, tuple(results)))
        return cycles

    def _order(self, book: Ledger, application: Application) -> None:
        """Plan what each free lane may merge now, and order it."""
        for lane in filter(self._is_free, LANES):
            scope = self._scope(lane, book)
            if scope is None:
                continue
            with ExitStack() as leases_of_plan:
                try:
                    plan = leases_of_plan.enter_context(leased_plan(self.run, scope))
                except LeaseTaken as busy:
                    log.info("Left to the next merge: %s", busy)
                    continue
                if plan is None:
                    continue
                application.order(plan.plan)
                names = frozenset(table.table for table in plan.tables)
                self._ordered.append(_OrderedPlan(lane, plan.plan, names, self.run.clock(), leases_of_plan.pop_all()))

    def _may_order(self, book: Ledger, staged: object, tried_at: float) -> bool:
        """Whether there may be more to merge than when it was tried."""
        return self.run.clock() - tried_at >= AGAIN_S or self._staged(book) != staged

    def _is_free(self, lane: Lane) -> bool:
        return all(ordered.lane != lane for ordered in self._ordered) and (lane == "quick" or bool(self._slow))

    def _scope(self, lane: Lane, book: Ledger) -> PlanScope | None:
        now = self.run.clock()
        self._failed_until = {table: until for table, until in self._failed_until.items() if until > now}
        prefix = of_table("")
        without = {
            name.removeprefix(prefix) for name in leases.awaited(book, self.run.holder) if name.startswith(prefix)
        }
        without |= self._failed_until.keys()
        without = without.union(*(ordered.tables for ordered in self._ordered))
        if lane == "quick":
            return PlanScope(all_of_them=self.all_of_them, without=frozenset(without | self._slow))
        scope = PlanScope(all_of_them=self.all_of_them, without=frozenset(without))
        slow = self._slow.intersection([*may_be_planned(book, self.run, scope), *awaiting_their_name(book, scope)])
        return PlanScope(tables=slow) if slow else None

    def _note(self, ingested: list[Ingested]) -> None:
        """Which tables failed, and which took long."""
        until = self.run.clock() + FAILED_S
        for table in (table for one in ingested for table in one.tables):
            if table.error is not None:
                self._failed_until[table.table] = until
            self._slow = self._slow | {table.table} if table.seconds >= SLOW_S else self._slow - {table.table}

    def _check(self, application: Application) -> None:
        limit_s = self.run.config.merge.timeout_s
        for ordered in self._ordered:
            if application.has_ended() and not self._has_result(ordered):
                raise SparkApplicationFailed(plan=ordered.plan, detail="it left no result")
            ran_s = self.run.clock() - ordered.began_at
            if ran_s > limit_s:
                raise SparkApplicationTooLong(plan=ordered.plan, ran=duration(ran_s), limit=duration(limit_s))
        if not self._ordered and application.has_ended():
            raise SparkApplicationFailed(plan="that comes next", detail="it ended before there was one")

    def _has_result(self, ordered: _OrderedPlan) -> bool:
        store = Store(self.run.config.lake, self.run.config.lake_access)
        return store.exists(layout.result_file(self.run.pipeline, ordered.plan))

    def _pause_s(self, merged_at: float) -> float:
        now = self.run.clock()
        if self._ordered:
            return LOOK_S / 4 if now - max(ordered.began_at for ordered in self._ordered) < 2 else LOOK_S
        return min(LOOK_AT_REST_S, max(LOOK_S, (now - merged_at) / LOOKS_PER_PAUSE))
