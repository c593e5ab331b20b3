"""Plans, orders and ingests merge after merge beside a drain that follows the source, until the run is over (R5, R6).

    ingest ──► plan, under the leases of its tables ──► order ──► result ──► ingest, the leases end ──┐
       ▲                                                                                              │
       └── something is staged, or `AGAIN_S` have passed ◄────────────────────────────────────────────┘

A cycle is the merge of every run (`capture.merge_planning`); only the application stays. A table that another task
waits for is left out until that task has had its turn. A table that failed is left out for `FAILED_S`, so that R6's
failed runs are as far from each other as those of runs by a schedule may be.

The run is over when its window is, its drain has staged up to a heartbeat and ended, and nothing more can be merged
now; and where its drain is not tried any more. While that is tried again, the merge waits for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from tidemark.capture.following.window import FollowWindow
from tidemark.capture.merge_planning import Ingested, PlanScope, ingest, ingested_by_another, leased_plan
from tidemark.errors import LeaseTaken, SparkApplicationFailed, SparkApplicationTooLong
from tidemark.formats import layout
from tidemark.formats.merge_plan import MergePlan
from tidemark.ledger import leases
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.leases import SLOT, of_table
from tidemark.ledger.staged import batches, generations
from tidemark.run import Run
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
# How often it is asked whether a drain that does not hold the slot is tried again.
ASK_S: Final = 10.0


class Application(Protocol):
    """The run's Spark application, or one after another where it died."""

    def order(self, plan: str) -> None:
        """Have it apply the plan."""

    def has_ended(self) -> bool:
        """Whether it died: it does nothing more."""


@dataclass(frozen=True, slots=True)
class MergeCycle:
    """A plan that was applied, and every result that was ingested with it."""

    plan: str
    ingested: tuple[Ingested, ...]


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
    _asked_at: float = field(default=float("-inf"), init=False)

    def results(self, application: Application) -> Iterator[MergeCycle]:
        """Merge until the run is over, or `between` says so.

        Raises SparkApplicationFailed if the application ends before it has applied a plan, or SparkApplicationTooLong
        if it takes longer for one than it may.
        """
        with open_ledger(self.run.ledger, self.run.pipeline) as book:
            merged_at = self.run.clock()
            while not self.between():
                staged, tried_at = self._staged(book), self.run.clock()
                is_over = self._is_over(book)
                cycle = self._cycle(book, application)
                if cycle is not None:
                    merged_at = self.run.clock()
                    yield cycle
                    continue
                if is_over:
                    return
                while self._staged(book) == staged and self.run.clock() - tried_at < AGAIN_S:
                    if application.has_ended():
                        raise SparkApplicationFailed(plan="that comes next", detail="it ended before there was one")
                    if self.between():
                        return
                    self.pause(min(LOOK_AT_REST_S, max(LOOK_S, (self.run.clock() - merged_at) / LOOKS_PER_PAUSE)))

    def _staged(self, book: Ledger) -> object:
        opened = generations.current(book)
        return None if opened is None else (opened.number, opened.staged_lsn)

    def _is_over(self, book: Ledger) -> bool:
        if leases.holders(book).get(SLOT) == self.drain_holder:
            return False
        if self.window.left_s(self.run.now()) <= 0 and any(
            batch.heartbeat_lsn is not None for batch in batches.of_run(book, self.run.run_id)
        ):
            return True
        if self.run.clock() - self._asked_at < ASK_S:
            return False
        self._asked_at = self.run.clock()
        return self.drain_has_ended()

    def _cycle(self, book: Ledger, application: Application) -> MergeCycle | None:
        if generations.current(book) is None:
            return None
        ingested = [ingest(self.run)]
        try:
            with leased_plan(self.run, self._scope(book)) as plan:
                if plan is not None:
                    self._apply(plan, application)
                    ingested.append(ingest(self.run))
        except LeaseTaken as busy:
            log.info("Left to the next merge: %s", busy)
            return None
        if plan is None:
            return MergeCycle("", tuple(ingested)) if ingested[0].plans else None
        if not any(plan.plan in one.plans for one in ingested):
            ingested.append(ingested_by_another(self.run, plan.plan))
        self._note_failures(ingested)
        return MergeCycle(plan.plan, tuple(ingested))

    def _scope(self, book: Ledger) -> PlanScope:
        now = self.run.clock()
        self._failed_until = {table: until for table, until in self._failed_until.items() if until > now}
        prefix = of_table("")
        awaited = {
            name.removeprefix(prefix) for name in leases.awaited(book, self.run.holder) if name.startswith(prefix)
        }
        return PlanScope(all_of_them=self.all_of_them, without=frozenset(awaited | self._failed_until.keys()))

    def _note_failures(self, ingested: list[Ingested]) -> None:
        until = self.run.clock() + FAILED_S
        for one in ingested:
            self._failed_until |= {table.table: until for table in one.tables if table.error is not None}

    def _apply(self, plan: MergePlan, application: Application) -> None:
        """Order the plan and wait for its result."""
        store = Store(self.run.config.lake, self.run.config.lake_access)
        path = layout.result_file(plan.pipeline, plan.plan)
        began, limit_s = self.run.clock(), self.run.config.merge.timeout_s
        application.order(plan.plan)
        while not store.exists(path):
            if application.has_ended() and not store.exists(path):
                raise SparkApplicationFailed(plan=plan.plan, detail="it left no result")
            ran_s = self.run.clock() - began
            if ran_s > limit_s:
                raise SparkApplicationTooLong(plan=plan.plan, ran=duration(ran_s), limit=duration(limit_s))
            self.pause(LOOK_S / 4 if ran_s < 2 else LOOK_S)
