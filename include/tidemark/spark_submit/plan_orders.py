"""Orders plan after plan from one Spark application, by files (`target.plans.ordered_plans`).

In this way a run that follows the source merges plan after plan, and maintenance compacts one group of tables after
another. The application starts once, and no lease is held while it starts.

`PlanOrders` is the operator's end: it makes the folder, writes its beat from a thread, orders plan after plan, removes
the orders whose plans have a result or are gone, and says when it is the end. Folders that earlier tries of this task
left are removed at once, and their applications end. One that lives although another took its place finds its beat
gone: it orders nothing more. The operator of another run may be at work, so its folder is removed once its beat stood
still.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol
from uuid import uuid4

from tidemark.errors import LeaseLost
from tidemark.formats import layout
from tidemark.run import Run
from tidemark.storage.store import Store

log = logging.getLogger(__name__)

BEAT_S: Final = 10.0
# After so many beats of this operator another one that did not beat is gone; its application has ended by itself.
GONE_AFTER: Final = 12

# Pipeline and plan -> the folder with the plan.json, and the result.json once the plan is applied.
FolderOf = Callable[[str, str], str]


class Application(Protocol):
    """A Spark application that takes orders, or its successor if it died."""

    def is_ready(self) -> bool:
        """Whether it has started, and waits for orders."""

    def order(self, plan: str) -> None:
        """Have it apply the plan of this name."""

    def has_ended(self) -> bool:
        """Whether it died: it does nothing more."""


class PlanOrders:
    """The orders of one application, made by `plan_orders`."""

    def __init__(self, run: Run, store: Store, folder_of: FolderOf) -> None:
        self._task = hashlib.sha256(run.holder.encode()).hexdigest()[:16]
        self.attempt = f"{self._task}-{uuid4()}"
        self.manifest = f"{run.config.lake}/{layout.beat_file(run.pipeline, self.attempt)}"
        self._folder = layout.orders_folder(run.pipeline, self.attempt)
        self._run = run
        self._store = store
        self._folder_of = folder_of
        self._number = 0
        self._plans: dict[int, str] = {}  # of the orders that are there
        self._beats = 0
        self._ended = threading.Event()

    def is_ready(self) -> bool:
        """Whether the application waits for orders."""
        return self._store.exists(layout.ready_file(self._run.pipeline, self.attempt))

    def order(self, plan: str) -> None:
        """Have the application apply a plan, by its name, once it is done with those before. Raises LeaseLost where a
        later operator removed the folder."""
        if not self._is_ours():
            raise LeaseLost(lease=self._folder, pipeline=self._run.pipeline, holder="a later try of this task")
        self._write(f"{self._run.config.lake}/{self._folder_of(self._run.pipeline, plan)}/plan.json")
        with suppress(Exception):  # they are removed with the next order, or with the folder
            self._remove_applied()
        self._plans[self._number] = plan

    def end(self) -> None:
        """Have the application end, once it is done with the plans before."""
        self._write("")

    def _write(self, content: str) -> None:
        self._number += 1
        self._store.write_new(f"{self._folder}/{layout.order(self._number)}", content.encode())

    def _remove_applied(self) -> None:
        """A run of a day has tens of thousands of orders. The newest one stays, so that a driver which the cluster
        starts anew finds the number that comes next."""
        for number, plan in list(self._plans.items()):
            folder = self._folder_of(self._run.pipeline, plan)
            # Maintenance deletes a plan once it has read the result.
            if self._store.exists(f"{folder}/result.json") or not self._store.exists(f"{folder}/plan.json"):
                self._store.delete(f"{self._folder}/{layout.order(number)}")
                del self._plans[number]

    def _is_ours(self) -> bool:
        return self._store.exists(layout.beat_file(self._run.pipeline, self.attempt))

    def beat(self) -> None:
        self._beats += 1
        self._store.write_atomic(layout.beat_file(self._run.pipeline, self.attempt), str(self._beats).encode())

    def beat_if_ours(self) -> None:
        """A beat that is gone is not brought back."""
        if self._is_ours():
            self.beat()

    def keep_beating(self) -> None:
        seen: dict[str, bytes | None] = {}
        waited = 0
        while not self._ended.wait(BEAT_S):
            waited += 1
            # A lake that is away for a moment is no end; the application waits longer than that.
            with suppress(Exception):
                self.beat_if_ours()
                if waited == 1:
                    seen = self.beats_of_others()
                elif waited > GONE_AFTER and seen:
                    self.remove_silent(seen)
                    seen = {}

    def remove_earlier_tries(self) -> None:
        for left in self._store.list(layout.orders_root(self._run.pipeline)):
            if left.startswith(self._task):
                self._remove(left)

    def beats_of_others(self) -> dict[str, bytes | None]:
        """By attempt, what its beat says now; None for a folder without one."""
        attempts = self._store.list(layout.orders_root(self._run.pipeline))
        return {attempt: self._beat_of(attempt) for attempt in attempts if attempt != self.attempt}

    def remove_silent(self, seen: dict[str, bytes | None]) -> None:
        """Remove the folders whose beat still says what was seen."""
        for attempt, beat in seen.items():
            if self._beat_of(attempt) == beat:
                self._remove(attempt)

    def _beat_of(self, attempt: str) -> bytes | None:
        try:
            return self._store.read(layout.beat_file(self._run.pipeline, attempt))
        except FileNotFoundError:
            return None

    def _remove(self, attempt: str) -> None:
        log.info("Removing %s, which an operator that died left", layout.orders_folder(self._run.pipeline, attempt))
        self._store.delete(layout.orders_folder(self._run.pipeline, attempt))

    def stop_beating(self) -> None:
        self._ended.set()


@contextmanager
def plan_orders(run: Run, store: Store, folder_of: FolderOf = layout.plan_folder) -> Iterator[PlanOrders]:
    """The orders, whose folder lasts as long as the block; those of earlier tries are removed, and their applications
    end."""
    orders = PlanOrders(run, store, folder_of)
    orders.remove_earlier_tries()
    orders.beat()
    beating = threading.Thread(target=orders.keep_beating, name="beat of the orders", daemon=True)
    beating.start()
    try:
        yield orders
    finally:
        orders.stop_beating()
        beating.join()
        with suppress(Exception):  # the next operator removes it
            store.delete(layout.orders_folder(run.pipeline, orders.attempt))
