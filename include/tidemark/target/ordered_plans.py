"""Reads the orders of a run that follows the source: its folder on the lake -> plan after plan (R10).

    <folder>/beat         the operator writes it anew every few seconds, with another content: it lives
    <folder>/order-<n>    the URI of a plan, n = 1, 2, …; of the last order nothing: it is the end

The application looks for the next order until it comes. It ends at the last one, or where the beat stands still or is
gone: then its operator is, and whoever comes after it has a folder and an application of its own. What both merge is
fenced as always (R5).
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
from tidemark.target.delta.session import read_text
from tidemark.target.merge_failures import is_gone

# How long the beat may stand still.
ALONE_S: Final = 60.0
_BEAT_S: Final = 5.0
# How often the next order is looked for: less often the longer there was none. Each look at an object store is a
# request.
_LOOK_S: Final = 0.05
_LOOK_AT_REST_S: Final = 0.5
_LOOKS_PER_PAUSE: Final = 20


def ordered_plans(
    spark: SparkSession,
    beat_uri: str,
    *,
    alone_s: float = ALONE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """The URIs of the plans, in order, each as soon as it is there. Raises PlanMissing where the operator is gone."""
    folder = beat_uri.rpartition("/")[0]
    at_least_s = _LOOK_AT_REST_S if beat_uri.startswith(tuple(f"{scheme}://" for scheme in OBJECT_STORES)) else _LOOK_S
    number, beat, beat_at, looked_at = 1, None, clock(), float("-inf")
    ordered_at = clock()
    while True:
        order = _read(spark, f"{folder}/{layout.order(number)}")
        if order == "":
            return
        if order is not None:
            yield order
            number += 1
            beat_at = looked_at = ordered_at = clock()  # a plan may take longer than a beat may stand still
            continue
        if clock() - looked_at >= _BEAT_S:
            looked_at = clock()
            before, beat = beat, _read(spark, beat_uri)
            if beat is not None and beat != before:
                beat_at = clock()
            if beat is None or clock() - beat_at > alone_s:
                raise PlanMissing(plan=beat_uri)
        sleep(min(_LOOK_AT_REST_S, max(at_least_s, (clock() - ordered_at) / _LOOKS_PER_PAUSE)))


def _read(spark: SparkSession, uri: str) -> str | None:
    """None where it is not there."""
    try:
        return read_text(spark, uri)
    except (FileNotFoundError, Py4JJavaError) as failed:
        if is_gone(failed):
            return None
        raise
