"""Few changes in many tables that exist: `python -m benchmarks.many_tables`.

The daily case of nearly every pipeline. Staged files are written by hand, so that the merge is measured alone: tables
of 2,000 rows get 50 changes each (updates for the most part, some inserts and deletes, one in ten updates without its
long value).

    many-20 …        in one warm session, beside a plain PySpark script over tables of the same rows in the same
                     session: append the changes to a history, MERGE the newest per key, four tables at a time; of
                     more than 100 tables it does 100, which counts as often as there are so many
    many-20-whole …  the same by spark-submit, as a run starts it, from its start to its end
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

from benchmarks.pairs import Benchmark, Curve, Goal, Meter, Pair, Pairs, Setting, Taken, in_turns, main
from benchmarks.pipeline import SMALL, submitted
from benchmarks.source_tables import COLUMNS, THREADS, SourceTable, plan_of
from benchmarks.warm_spark import applied, jvm_pid, warm_session
from tidemark.formats.merge_plan import PlannedTable
from tidemark.target.delta.session import FEW_ROWS_SETTINGS, activate

THERE = 2_000  # rows that each table holds before
CHANGES = 50  # in each table and round
WARMING = 20  # tables that warm a session up
ENOUGH = 100  # tables whose making alone warms the session up
MOST_BESIDE = 100  # tables that are merged beside, a second each, which is no other where there are more


def append_and_merge(spark: SparkSession, lake: Path, tables: Sequence[PlannedTable]) -> None:
    """A session and a thread per table, as many at a time as the merge has. Of Tidemark's settings those alone with
    which a bare MERGE of so few rows is fastest: nothing compiled, one partition."""

    def one(table: PlannedTable) -> None:
        session = spark.newSession()
        for name, value in {**dict.fromkeys(SMALL, "1"), **FEW_ROWS_SETTINGS}.items():
            session.conf.set(name, value)
        activate(session)
        rows = session.read.parquet(*[str(lake / f.path) for b in table.batches for f in b.files])
        history = rows.drop("_old_key")
        history.write.format("delta").mode("append").save(str(lake / "plain" / "history" / table.table))
        newest = Window.partitionBy("id").orderBy(F.col("_commit_lsn").desc(), F.col("_ordinal").desc())
        source = history.withColumn("n", F.row_number().over(newest)).where("n = 1")
        target = str(lake / "plain" / "current" / table.table)
        columns = [*COLUMNS, "_commit_lsn", "_committed_at"]
        if not DeltaTable.isDeltaTable(session, target):
            empty = session.createDataFrame([], source.select(*columns).schema)
            empty.write.format("delta").option("delta.enableDeletionVectors", "true").save(target)
        values = {name: f"s.{name}" for name in columns}
        assignments = {**values, "note": "CASE WHEN s._unchanged IS NULL THEN s.note ELSE t.note END"}
        merge = DeltaTable.forPath(session, target).alias("t").merge(source.alias("s"), "s.id = t.id")
        merge = merge.whenMatchedDelete("s._op = 'delete'").whenMatchedUpdate(set=dict(assignments))
        merge.whenNotMatchedInsert("s._op <> 'delete'", values=dict(values)).execute()

    with ThreadPoolExecutor(max_workers=THREADS) as pool:
        list(pool.map(one, tables))


def warm(setting: Setting) -> Pairs:
    with warm_session() as spark:
        if setting.size < WARMING:  # so few tables would warm nothing up
            for _ in rounds(spark, Setting(min(WARMING, setting.size * 4), 0, setting.folder / "warming")):
                pass
        yield from rounds(spark, setting)


def rounds(spark: SparkSession, setting: Setting) -> Pairs:
    """The tables are made before the first round that counts and, unless there are many of them, changed once."""
    lake = setting.folder
    tables = [SourceTable(lake, n, random.Random(n)) for n in range(setting.size)]
    meter = Meter(jvm_pid(spark))
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    jobs = 0

    def ours(number: int, planned: Sequence[PlannedTable]) -> None:
        nonlocal jobs
        before = int(scheduler.numTotalJobs())
        applied(spark, plan_of(f"round{number}", lake, planned))
        jobs = int(scheduler.numTotalJobs()) - before

    def beside(planned: Sequence[PlannedTable]) -> Taken:
        some = planned[:MOST_BESIDE]
        taken = meter.of(partial(append_and_merge, spark, lake, some))
        times = len(planned) / len(some)
        return Taken(taken.seconds * times, taken.cpu_s * times)

    first = -1 if setting.size >= ENOUGH else -2
    for number in range(first, setting.rounds):
        planned = [t.next_batch(THERE) if number == first else t.next_changes(CHANGES) for t in tables]
        pair = in_turns(number, partial(meter.of, partial(ours, number, planned)), partial(beside, planned))
        if number >= 0:
            yield Pair(pair.ours, pair.beside, {"jobs_a_table": jobs / setting.size})


def whole(setting: Setting) -> Pairs:
    """Each round is a driver of its own; the one that makes the tables is not counted."""
    lake = setting.folder
    tables = [SourceTable(lake, n, random.Random(n)) for n in range(setting.size)]
    submitted(plan_of("first", lake, [table.next_batch(THERE) for table in tables]))
    for number in range(setting.rounds):
        plan = plan_of(f"round{number}", lake, [table.next_changes(CHANGES) for table in tables])
        yield Pair(Meter().of(partial(submitted, plan)))


def growing(sizes: Sequence[int], folder: Path) -> Iterator[tuple[int, Pair]]:
    """All in one session, which is warmed up before."""
    with warm_session() as spark:
        for _ in rounds(spark, Setting(min(WARMING, sizes[-1]), 0, folder / "warming")):
            pass
        for size in sizes:
            for pair in rounds(spark, Setting(size, 1, folder / str(size))):
                yield size, pair


BENCHMARKS = (
    *(
        Benchmark(
            name=f"many-{tables}",
            what="50 changes in each of some tables that exist, merged",
            beside="bare append and MERGE, same warm session",
            goals=(Goal("ratio", 2),),
            unit="tables",
            sizes={"tiny": 2, "small": max(10, tables // 4), "full": tables},
            pairs=warm,
        )
        for tables in (20, 40, 200, 500)
    ),
    *(
        Benchmark(
            name=f"many-{tables}-whole",
            what="50 changes in each of some tables that exist, merged by an application of its own",
            beside="",
            goals=(Goal("seconds", seconds),),
            unit="tables",
            sizes={"tiny": 2, "small": max(10, tables // 4), "full": tables},
            pairs=whole,
        )
        for tables, seconds in ((20, 14), (500, 240))
    ),
)
CURVES = (
    Curve(
        name="tables",
        title="50 changes in each of some tables, merged in a warm session",
        x="tables",
        y="seconds",
        ours="Tidemark",
        beside="bare append and MERGE",
        sizes={"tiny": (1, 2), "small": (1, 5, 20, 40), "full": (1, 5, 20, 40, 100, 200)},
        points=growing,
    ),
)

if __name__ == "__main__":
    main(BENCHMARKS, CURVES, __doc__)
