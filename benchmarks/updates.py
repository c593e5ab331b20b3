"""Updates all over a table that exists: `python -m benchmarks.updates`.

A table of ten times as many rows is merged first, by Tidemark and by a plain script, each into tables of its own. Then
rows in no order of the key are updated, drained, and brought into history and current: by the merge application, and
by a plain script that appends the staged files and MERGEs the newest per key. Both are a spark-submit each, from its
start to its end, on the same staged files; each round has changes of its own.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import psycopg

from benchmarks import workloads
from benchmarks.new_table import SCRIPT as FIRST
from benchmarks.new_table import files_of
from benchmarks.pairs import Benchmark, Goal, Meter, Pairs, Setting, main
from benchmarks.pipeline import Refused, one_pipeline, plain_submit, submitted
from tidemark.capture.merge_planning import ingest

SCRIPT = Path(__file__).with_name("plain") / "append_and_merge.py"
ROWS_OF_ONE = 10  # rows of the table for each that is updated


def pairs(setting: Setting) -> Pairs:
    there = setting.size * ROWS_OF_ONE
    beside = str(setting.folder / "plain")
    meter = Meter()
    with one_pipeline(setting.folder) as pipeline, psycopg.connect(pipeline.source, autocommit=True) as connection:
        workloads.create(connection)
        pipeline.begin()
        workloads.insert(connection, 0, there)
        pipeline.drain()
        plain_submit(FIRST, [beside, *files_of(pipeline.plan())])
        pipeline.merge()
        for number in range(setting.rounds):
            workloads.update_all_over(connection, setting.size, there, number + 1)
            drained = pipeline.drain()
            if drained.rows != setting.size:
                raise Refused(f"{drained.rows:,} changes were staged of {setting.size:,}")
            plan = pipeline.plan()
            yield meter.pair(number, partial(submitted, plan), partial(plain_submit, SCRIPT, [beside, *files_of(plan)]))
            ingest(pipeline.task("merge"))


BENCHMARKS = (
    Benchmark(
        name="updates",
        what="updates in no order of a table of ten times as many rows, merged into history and current",
        beside="a plain script: append, and MERGE the newest per key",
        goals=(Goal("ratio", 0.6),),
        unit="updates",
        sizes={"tiny": 100, "small": 20_000, "full": 100_000},
        pairs=pairs,
    ),
)

if __name__ == "__main__":
    main(BENCHMARKS, about=__doc__)
