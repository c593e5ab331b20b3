"""Many merges in a row, with maintenance: `python -m benchmarks.age`.

A table of 20,000 rows gets 200 changes a merge, staged by hand, in one warm session. After every fiftieth merge
maintenance does what its DAG does, OPTIMIZE where it is due and VACUUM. The pair is the median of the last ten merges
beside that of the first ten; each round is a table of its own, and a first table that is not counted warms the
session up.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.pairs import Benchmark, Curve, Goal, Meter, Pair, Pairs, Setting, Taken, main
from benchmarks.source_tables import PIPELINE, SourceTable, plan_of
from benchmarks.warm_spark import applied, jvm_pid, warm_session
from tidemark.formats.compaction_plan import CompactionPlan
from tidemark.target.table_compaction import maintain_tables

THERE = 20_000
CHANGES = 200
BETWEEN = 50  # merges between two runs of maintenance: with a schedule of five minutes, six a day
ENDS = 10  # merges at either end


def pairs(setting: Setting) -> Pairs:
    with warm_session() as spark:
        list(merges(spark, setting.folder, 0, min(40, setting.size)))
        for number in range(1, setting.rounds + 1):
            taken = list(merges(spark, setting.folder, number, setting.size))
            ends = min(ENDS, max(1, setting.size // 2))
            yield Pair(middle(taken[-ends:]), middle(taken[:ends]))


def merges(spark: SparkSession, lake: Path, number: int, count: int) -> Iterator[Taken]:
    table = SourceTable(lake, number, random.Random(number))
    applied(spark, plan_of(f"first{number}", lake, [table.next_batch(THERE)]))
    meter = Meter(jvm_pid(spark))
    for merge in range(count):
        plan = plan_of(f"merge{number}-{merge}", lake, [table.next_changes(CHANGES)])
        yield meter.of(partial(applied, spark, plan))
        if merge % BETWEEN == BETWEEN - 1:
            maintained(spark, lake, str(table.schema.table), f"{number}-{merge}")


def maintained(spark: SparkSession, lake: Path, table: str, name: str) -> None:
    """As the DAG has it: all tables are looked at, then `current` of those that are due."""
    for step in ("look", "current"):
        plan = CompactionPlan(
            plan=f"{step}{name}",
            pipeline=PIPELINE,
            lake=str(lake),
            step=step,
            tables=(table,),
            threads=1,
            versions_days=7,
            thorough=False,
        )
        result = maintain_tables(spark, plan)
        if not any(upkept.due for upkept in result.tables):
            return


def middle(taken: Sequence[Taken]) -> Taken:
    return Taken(statistics.median(t.seconds for t in taken), statistics.median(t.cpu_s for t in taken))


def growing(sizes: Sequence[int], folder: Path) -> Iterator[tuple[int, Pair]]:
    """Medians of ten merges, one table as it ages; beside them those of the first ten."""
    with warm_session() as spark:
        list(merges(spark, folder, 0, min(40, sizes[-1])))
        taken: list[Taken] = []
        for merge in merges(spark, folder, 1, sizes[-1]):
            taken.append(merge)
            if len(taken) in sizes:
                yield len(taken), Pair(middle(taken[-ENDS:]), middle(taken[:ENDS]))


BENCHMARKS = (
    Benchmark(
        name="age",
        what="last ten of some merges in a row, with maintenance",
        beside="the first ten",
        goals=(Goal("ratio", 1.2),),
        unit="merges",
        sizes={"tiny": 2, "small": 60, "full": 200},
        pairs=pairs,
    ),
)
CURVES = (
    Curve(
        name="merges",
        title="One of many merges in a row, 200 changes each, with maintenance",
        x="merges so far",
        y="seconds, median of ten",
        ours="merge",
        beside="the first ten",
        sizes={"tiny": (2,), "small": (10, 20, 30, 40, 50, 60), "full": (10, 25, 50, 75, 100, 125, 150, 175, 200)},
        points=growing,
    ),
)

if __name__ == "__main__":
    main(BENCHMARKS, CURVES, __doc__)
