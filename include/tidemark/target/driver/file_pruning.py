"""Derives from the key ranges of some files a condition on the target, by which Delta skips files.

Only the first whole-number column of a key is used. The bounds of such a column are exact in Delta's log, and all
engines order whole numbers alike. Every range is compared with every row that is read, so there are few: the smallest
gaps between ranges are closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from tidemark.target.delta import hadoop_files

MAX_RANGES: Final = 4

KeyRange = tuple[int, int]


def ranges_in(session: SparkSession, uris: Iterable[str], column: str) -> list[KeyRange] | None:
    """Both ends of each file's values; None if they are no whole numbers, or one of them is NULL."""
    ranges = []
    for uri in uris:
        with hadoop_files.open_to_read(session, uri) as opened:
            values = pq.ParquetFile(opened).read(columns=[column])[column]
        if not pa.types.is_integer(values.type) or values.null_count:
            return None
        if len(values):
            between = pc.min_max(values).as_py()
            ranges.append((between["min"], between["max"]))
    return ranges


def joined(ranges: Iterable[KeyRange], most: int = MAX_RANGES) -> list[KeyRange]:
    """At most so many ranges that hold all of these, and as little else as that allows."""
    apart: list[KeyRange] = []
    for low, high in sorted(ranges):
        if apart and low <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(apart[-1][1], high)
        else:
            apart.append((low, high))
    gaps = sorted(range(1, len(apart)), key=lambda n: apart[n][0] - apart[n - 1][1])
    closed = set(gaps[: max(0, len(apart) - most)])
    result: list[KeyRange] = []
    for number, (low, high) in enumerate(apart):
        if number in closed:
            result[-1] = result[-1][0], high
        else:
            result.append((low, high))
    return result


def within(column: Column, ranges: Sequence[KeyRange]) -> Column:
    return reduce(Column.__or__, [column.between(low, high) for low, high in ranges], F.lit(False))
