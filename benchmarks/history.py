"""Staged changes into `history`, beside Spark's append of the same rows: `python -m benchmarks.history`.

The table has no key, so that it has a history and nothing else, and what is measured is the merge of one table as a
whole, positions included. Each round stages changes of its own; they are applied by the merge's code, and read as
Parquet and appended to a Delta table by Spark, in one warm session. A round that is not counted warms it up.
"""

from __future__ import annotations

from functools import partial

import psycopg

from benchmarks import workloads
from benchmarks.new_table import files_of
from benchmarks.pairs import Benchmark, Goal, Meter, Pair, Pairs, Setting, main
from benchmarks.pipeline import Refused, one_pipeline
from benchmarks.warm_spark import applied, jvm_pid, warm_session
from tidemark.capture.merge_planning import ingest
from tidemark.config import TableRule


def pairs(setting: Setting) -> Pairs:
    with (
        one_pipeline(setting.folder, tables=(TableRule("public.measurements"),)) as pipeline,
        warm_session() as spark,
        psycopg.connect(pipeline.source, autocommit=True) as connection,
    ):
        meter = Meter(jvm_pid(spark))
        workloads.create(connection)
        connection.execute("ALTER TABLE measurements DROP CONSTRAINT measurements_pkey")
        pipeline.begin()
        beside = str(setting.folder / "plain")

        def append(files: list[str]) -> None:
            spark.read.parquet(*files).write.format("delta").mode("append").save(beside)

        for number in range(-1, setting.rounds):
            workloads.insert(connection, 0, setting.size)
            if pipeline.drain().rows != setting.size:
                raise Refused("not all changes were staged")
            plan = pipeline.plan()
            pair = meter.pair(number, partial(applied, spark, plan), partial(append, files_of(plan)))
            ingest(pipeline.task("merge"))
            if number >= 0:
                yield Pair(pair.ours, pair.beside, {"changes_per_s": setting.size / pair.ours.seconds})


BENCHMARKS = (
    Benchmark(
        name="history",
        what="staged changes into history",
        beside="Spark's append of the same rows, warm",
        goals=(Goal("ratio", 0.1),),
        unit="changes",
        sizes={"tiny": 200, "small": 300_000, "full": 1_500_000},
        pairs=pairs,
    ),
)

if __name__ == "__main__":
    main(BENCHMARKS, about=__doc__)
