"""Derives a condition on the target from the key ranges of staged files, so that Delta can skip data files.

Only the key's first column is used, and only if it is an integer column. Delta's log has exact bounds of integers, and
all engines order integers alike. Spark compares every range with every row that it reads. So there are at most
`MAX_RANGES`: ranges with the smallest gaps between them are joined.
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
    """The least and the greatest value of the column in each file; None if it is no integer column or has a NULL."""
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


def join_ranges(ranges: Iterable[KeyRange], most: int = MAX_RANGES) -> list[KeyRange]:
    """At most `most` ranges that contain all of the given ranges, with the smallest possible gaps included."""
    disjoint: list[KeyRange] = []
    for low, high in sorted(ranges):
        if disjoint and low <= disjoint[-1][1]:
            disjoint[-1] = disjoint[-1][0], max(disjoint[-1][1], high)
        else:
            disjoint.append((low, high))
    gaps = sorted(range(1, len(disjoint)), key=lambda n: disjoint[n][0] - disjoint[n - 1][1])
    closed = set(gaps[: max(0, len(disjoint) - most)])
    result: list[KeyRange] = []
    for number, (low, high) in enumerate(disjoint):
        if number in closed:
            result[-1] = result[-1][0], high
        else:
            result.append((low, high))
    return result


def within(column: Column, ranges: Sequence[KeyRange]) -> Column:
    return reduce(Column.__or__, [column.between(low, high) for low, high in ranges], F.lit(False))
