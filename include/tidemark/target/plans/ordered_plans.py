"""Reads the orders of a task from their folder on the lake -> one plan after another (R10).

    <folder>/beat         the operator rewrites it every few seconds with new content, to show that it is alive
    <folder>/ready        this application writes it when it begins to look for orders
    <folder>/order-<n>    the URI of a plan, n = 1, 2, …; the last order is empty

The operator removes orders whose plans have a result, except for the newest order. So a driver that the cluster starts
anew begins with the orders that it finds.

The application polls for the next order while it applies others. It ends at the empty order, or if the beat does not
change or is missing: the operator has then died. Its successor uses another folder and another application. R5's fences
protect the tables if both applications merge at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tidemark.errors import PlanMissing
from tidemark.formats import layout
from tidemark.storage.store import OBJECT_STORES
from tidemark.target.delta.hadoop_files import read_whole, visible_files, write_new
from tidemark.target.delta.jvm import keep_hadoop_configuration
from tidemark.target.merge_failures import is_missing_file

# How long the beat may stay unchanged.
BEAT_TIMEOUT_S: Final = 60.0
_BEAT_S: Final = 5.0
# The pause between two polls for the next order, which grows the longer there is none. On an object store each poll is
# a request.
_POLL_S: Final = 0.05
_LONGEST_POLL_S: Final = 0.5
_POLLS_PER_PAUSE: Final = 20


def ordered_plans(
    spark: SparkSession,
    beat_uri: str,
    *,
    beat_timeout_s: float = BEAT_TIMEOUT_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Yield the URIs of the plans in order, each as soon as it is written. Raises PlanMissing if the operator died."""
    # Hadoop's settings are kept, since an order is looked for several times a second. A session of its own keeps them:
    # the application's session sees later ones.
    session = spark.newSession()
    keep_hadoop_configuration(session)
    folder = beat_uri.rpartition("/")[0]
    shortest_poll_s = (
        _LONGEST_POLL_S if beat_uri.startswith(tuple(f"{scheme}://" for scheme in OBJECT_STORES)) else _POLL_S
    )
    if _read(session, f"{folder}/{layout.READY}") is None:
        write_new(session, folder, b"", layout.READY)
    found = _orders_in(session, folder)
    number, newest = min(found, default=1), max(found, default=0)
    beat, beat_changed_at, beat_read_at = None, clock(), float("-inf")
    ordered_at = clock()
    while True:
        order = _read(session, f"{folder}/{layout.order(number)}")
        if order == "":
            return
        if order is not None:
            yield order
            number += 1
            ordered_at = clock()
            continue
        if number < newest:
            number += 1
            continue
        if clock() - beat_read_at >= _BEAT_S:
            beat_read_at = clock()
            previous_beat, beat = beat, _read(session, beat_uri)
            if beat is not None and beat != previous_beat:
                beat_changed_at = clock()
            if beat is None or clock() - beat_changed_at > beat_timeout_s:
                raise PlanMissing(plan=beat_uri)
        sleep(min(_LONGEST_POLL_S, max(shortest_poll_s, (clock() - ordered_at) / _POLLS_PER_PAUSE)))


def _orders_in(session: SparkSession, folder: str) -> list[int]:
    prefix = layout.order(0).removesuffix("0")
    try:
        names = [name for name, _ in visible_files(session, folder)]
    except Py4JJavaError as failed:
        if is_missing_file(failed):
            return []
        raise
    return [int(name.removeprefix(prefix)) for name in names if name.startswith(prefix)]


def _read(session: SparkSession, uri: str) -> str | None:
    """The file's text, None if there is no such file. Of an order that is no text, no plan has the name."""
    try:
        return read_whole(session, uri).decode(errors="replace")
    except (FileNotFoundError, Py4JJavaError) as failed:
        if is_missing_file(failed):
            return None
        raise
