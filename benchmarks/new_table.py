"""Changes of a table that no Delta table has yet, merged: `python -m benchmarks.new_table`.

A table's life from its first row on, of 31 changes 20 inserts, 10 updates and a delete, is drained once; then the
same staged files go into history and current by the merge application, and by a plain script that appends all of them
and the newest per key. Both are a spark-submit each, from its start to its end, into a lake without the tables.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import psycopg

from benchmarks import workloads
from benchmarks.pairs import Benchmark, Curve, Goal, Meter, Pair, Pairs, Setting, main
from benchmarks.pipeline import Pipeline, Refused, errors_of, one_pipeline, plain_submit, submitted
from tidemark.formats import layout
from tidemark.formats.merge_plan import MergePlan

SCRIPT = Path(__file__).with_name("plain") / "append_and_newest.py"


def pairs(setting: Setting) -> Pairs:
    with one_pipeline(setting.folder) as pipeline:
        plan = staged(pipeline, setting.size)
        for number in range(setting.rounds):
            yield first_load(pipeline, plan, setting.folder / "plain", number)


def staged(pipeline: Pipeline, changes: int) -> MergePlan:
    with psycopg.connect(pipeline.source, autocommit=True) as connection:
        workloads.create(connection)
        pipeline.begin()
        written = workloads.mixed(connection, changes)
    drained = pipeline.drain()
    if drained.rows != written:
        raise Refused(f"{drained.rows:,} changes were staged of {written:,}")
    return pipeline.plan()


def first_load(pipeline: Pipeline, plan: MergePlan, beside: Path, number: int) -> Pair:
    """The plan once more, into no table at all, and its files by the plain script into none either."""
    for kind in ("current", "history"):
        shutil.rmtree(pipeline.table(kind, "measurements"), ignore_errors=True)
    shutil.rmtree(beside, ignore_errors=True)
    meter = Meter()
    arguments = [str(beside), *files_of(plan)]
    pair = meter.pair(number, partial(submitted, plan), partial(plain_submit, SCRIPT, arguments))
    merged = errors_of(Path(plan.lake, layout.result_file(plan.pipeline, plan.plan)))
    rows = sum(table.rows for table in plan.tables)
    if sum(table.rows.get("history", 0) for table in merged.tables) != rows:
        raise Refused(f"history has not all of {rows:,} changes")
    return Pair(pair.ours, pair.beside, {"changes_per_s": rows / pair.ours.seconds})


def files_of(plan: MergePlan) -> list[str]:
    """The plan's staged files, for whoever reads Parquet."""
    return [f"{plan.lake}/{f.path}" for table in plan.tables for batch in table.batches for f in batch.files]


def growing(sizes: Sequence[int], folder: Path) -> Iterator[tuple[int, Pair]]:
    for size in sizes:
        with one_pipeline(folder / str(size)) as pipeline:
            plan = staged(pipeline, size)
            yield size, first_load(pipeline, plan, folder / str(size) / "plain", 0)


BENCHMARKS = (
    Benchmark(
        name="new-table",
        what="changes of a new table, merged into history and current",
        beside="a plain script: append all, append the newest per key",
        goals=(Goal("ratio", 0.5),),
        unit="changes",
        sizes={"tiny": 310, "small": 310_000, "full": 1_550_000},
        pairs=pairs,
    ),
)
CURVES = (
    Curve(
        name="rows",
        title="Changes of a new table, merged",
        x="changes",
        y="seconds, with Spark's start",
        ours="Tidemark",
        beside="plain script",
        sizes={
            "tiny": (31, 310),
            "small": (3_100, 31_000, 310_000),
            "full": (3_100, 31_000, 310_000, 1_550_000, 3_100_000),
        },
        points=growing,
    ),
)

if __name__ == "__main__":
    main(BENCHMARKS, CURVES, __doc__)
