"""Orders the merges of a run that follows the source from its one Spark application, by files (`target.ordered_plans`).

`PlanOrders` is the operator's end: it makes the folder, writes its beat from a thread, orders plan after plan, removes
the orders whose plans have a result, and says when it is the end. Folders of operators that died are removed by the
next one, and their applications end. One that lives although another took its place finds its beat gone: it orders
nothing more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from uuid import uuid4

from tidemark.errors import LeaseLost
from tidemark.formats import layout
from tidemark.run import Run
from tidemark.storage.store import Store

log = logging.getLogger(__name__)

BEAT_S: Final = 10.0


class PlanOrders:
    """The orders of one application, made by `plan_orders`."""

    def __init__(self, run: Run, store: Store) -> None:
        self.attempt = str(uuid4())
        self.manifest = f"{run.config.lake}/{layout.beat_file(run.pipeline, self.attempt)}"
        self._folder = layout.following_folder(run.pipeline, self.attempt)
        self._run = run
        self._store = store
        self._number = 0
        self._plans: dict[int, str] = {}  # of the orders that are there
        self._beats = 0
        self._ended = threading.Event()

    def order(self, plan: str) -> None:
        """Have the application apply a plan, by its name, once it is done with those before. Raises LeaseLost where a
        later operator removed the folder."""
        if not self._is_ours():
            raise LeaseLost(lease=self._folder, pipeline=self._run.pipeline, holder="a later try of this task")
        self._write(f"{self._run.config.lake}/{layout.plan_file(self._run.pipeline, plan)}")
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
            if self._store.exists(layout.result_file(self._run.pipeline, plan)):
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
        while not self._ended.wait(BEAT_S):
            # A lake that is away for a moment is no end; the application waits longer than that.
            with suppress(Exception):
                self.beat_if_ours()

    def stop_beating(self) -> None:
        self._ended.set()


@contextmanager
def plan_orders(run: Run, store: Store) -> Iterator[PlanOrders]:
    """The orders, whose folder lasts as long as the block; those of others are removed, and their applications end."""
    root = layout.following_root(run.pipeline)
    for left in store.list(root):
        log.info("Removing %s/%s, which an operator that died left", root, left)
        store.delete(f"{root}/{left}")
    orders = PlanOrders(run, store)
    orders.beat()
    beating = threading.Thread(target=orders.keep_beating, name="beat of the merge", daemon=True)
    beating.start()
    try:
        yield orders
    finally:
        orders.stop_beating()
        beating.join()
        with suppress(Exception):  # the next operator removes it
            store.delete(layout.following_folder(run.pipeline, orders.attempt))
