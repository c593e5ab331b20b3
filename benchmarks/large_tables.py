"""A few changes of a table of any size: `python -m benchmarks.large_tables`.

`current` gets its rows as a backfill's chunks and OPTIMIZE leave them, in files of some hundred megabytes, without a
source: one row is merged, Spark appends the others. The keys are bigints, or uuids in no order, kept as text. Then rows
all over the table are updated. Beside each merge stands DeltaTable.merge of the same staged changes into a copy of
current, in the same warm session; it writes no history.

`large-whole-…` are whole runs, each with a drain and a spark-submit of its own. Their source has only the rows that
change. A run merges these, and then Spark writes all rows of the table in their place. Each row is changed once.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import random
import resource
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import psutil
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.pairs import Benchmark, Curve, Goal, Meter, Pair, Pairs, Scale, Setting, Taken, in_turns, main
from benchmarks.pipeline import SERVER, Pipeline, Refused, pipeline_on
from benchmarks.source_tables import NOON, PIPELINE, plan_of
from benchmarks.warm_spark import applied, jvm_pid, warm_session
from sandbox.services.postgres import PostgresServer, running
from tidemark.formats import layout
from tidemark.formats.columns import staged_schema
from tidemark.formats.manifest import StagedFile
from tidemark.formats.merge_plan import MergePlan, PlannedBatch, PlannedTable
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.schema.table import Column, TableSchema

Kind = Literal["bigint", "uuid"]
ROWS_OF_A_FILE: Final = 4_000_000
MILLION: Final = 1_000_000


@dataclass
class LargeTable:
    """Rows 0 to `rows`, each with a key of its number; `next_plan` is the next merge, of updates."""

    lake: Path
    kind: Kind
    rows: int
    merges: int = 0
    end: Lsn | None = None

    @property
    def schema(self) -> TableSchema:
        types = {"id": "bigint" if self.kind == "bigint" else "string", "n": "bigint", "note": "string"}
        columns = tuple(Column(name, target, 25, -1, target) for name, target in types.items())
        return TableSchema(TableName("public", f"{self.kind}_{self.rows}"), 1, 16384, "default", ("id",), columns)

    @property
    def current(self) -> Path:
        return self.lake / PIPELINE / "current" / "public" / self.schema.table.name

    def fill(self, spark: SparkSession) -> None:
        """Merge the first row, which makes the table, and have Spark append the others."""
        applied(spark, self.next_plan([0], op="insert"))
        write(rows_of(spark, self.kind, 1, self.rows), "append", self.current)

    def next_plan(self, numbers: Sequence[int], op: str = "update") -> MergePlan:
        start = 0x1000 + 0x10 * self.merges
        self.merges += 1
        rows: list[dict[str, Any]] = [
            {"_op": op, "id": key_of(self.kind, number), "n": -self.merges, "note": "changed", "_ordinal": ordinal}
            | {"_generation": 1, "_commit_lsn": start, "_xid": start, "_committed_at": NOON + timedelta(seconds=start)}
            for ordinal, number in enumerate(numbers)
        ]
        folder = layout.batch_folder(PIPELINE, 1, Lsn(start), "attempt")
        path = layout.changes_file(folder, self.schema.table, 1, 1)
        file = self.lake / path
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, staged_schema(self.schema)), file, compression="zstd")
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        staged = StagedFile(path, len(rows), file.stat().st_size, sha256, 1)
        after, self.end = self.end, Lsn(start + 0x10)
        batch = PlannedBatch(Lsn(start), self.end, (staged,), 0, 0, 0)
        table = PlannedTable(str(self.schema.table), after, (self.schema,), (batch,))
        return plan_of(f"{self.schema.table.name}-{self.merges}", self.lake, [table])


def key_of(kind: Kind, number: int) -> int | str:
    if kind == "bigint":
        return number
    digits = hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def rows_of(spark: SparkSession, kind: Kind, first: int, end: int) -> DataFrame:
    """Rows `first` up to and without `end`, with the columns of current."""
    digits = F.md5(F.col("id").cast("string"))
    cuts = [digits.substr(at, length) for at, length in ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))]
    return spark.range(first, end, numPartitions=max(2, (end - first) // ROWS_OF_A_FILE)).select(
        ("id" if kind == "bigint" else F.concat_ws("-", *cuts).alias("id")),
        F.col("id").alias("n"),
        F.concat(F.lit("note "), F.col("id") % 1000).alias("note"),
        F.lit(1).cast("bigint").alias("_commit_lsn"),
        F.lit(NOON).alias("_committed_at"),
        F.lit(None).cast("array<string>").alias("_holes"),
    )


def write(rows: DataFrame, mode: Literal["append", "overwrite"], current: Path) -> None:
    """As maintenance writes."""
    writer = rows.write.format("delta").mode(mode).option("compression", "zstd")
    writer.option("parquet.compression.codec.zstd.level", 1).save(str(current))


def bare_merge(spark: SparkSession, current: Path, plan: MergePlan) -> None:
    """What somebody would write: no two staged changes have a key in common, so nothing is folded."""
    files = [f"{plan.lake}/{f.path}" for table in plan.tables for batch in table.batches for f in batch.files]
    values = {name: f"s.{name}" for name in ("id", "n", "note", "_commit_lsn", "_committed_at")}
    merge = DeltaTable.forPath(spark, str(current)).alias("t").merge(
        spark.read.parquet(*files).alias("s"), "s.id = t.id"
    )  # fmt: skip
    merge.whenMatchedUpdate(set=dict(values)).whenNotMatchedInsert(values=dict(values)).execute()


def pair(spark: SparkSession, table: LargeTable, beside: Path | None, changed: int, number: int) -> Pair:
    plan = table.next_plan(random.Random(number).sample(range(table.rows), min(changed, table.rows)))
    meter = Meter(jvm_pid(spark))
    ours = partial(applied, spark, plan)
    facts = {"files": float(len(list(table.current.glob("*.parquet"))))}
    if beside is None:
        return Pair(meter.of(ours), facts=facts)
    both = meter.pair(number, ours, partial(bare_merge, spark, beside, plan))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Pair(both.ours, both.beside, {**facts, "python_peak_mb": peak_mb})


def pairs(kind: Kind, changed: int, setting: Setting) -> Pairs:
    """The first pair is not counted: it warms up both."""
    with warm_session() as spark:
        table = LargeTable(setting.folder, kind, setting.size)
        beside = filled(spark, table)
        for number in range(-1, setting.rounds):
            one = pair(spark, table, beside, changed, number)
            if number >= 0:
                yield one


def filled(spark: SparkSession, table: LargeTable) -> Path:
    """The table with its rows; the copy of current, which shares the files' bytes."""
    table.fill(spark)
    copy = table.lake / "beside" / table.schema.table.name
    shutil.rmtree(copy, ignore_errors=True)
    copy.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-al", str(table.current), str(copy)], check=True)
    return copy


def growing(kind: Kind, sizes: Sequence[int], folder: Path) -> Iterator[tuple[int, Pair]]:
    with warm_session() as spark:
        for size in sizes:
            table = LargeTable(folder, kind, size)
            beside = filled(spark, table)
            pair(spark, table, beside, 1_000, -1)
            yield size, pair(spark, table, beside, 1_000, 0)
            for used in (table.current, beside):
                shutil.rmtree(used)


# --- whole runs ------------------------------------------------------------------------------------------------------


@dataclass
class CapturedTable:
    """A table of so many rows whose source has only those that change: `changed` of them in each of the rounds."""

    pipeline: Pipeline
    kind: Kind
    rows: int
    changed: int
    rounds: int

    def __post_init__(self) -> None:
        self.numbers = random.Random(self.rows).sample(range(self.rows), min(self.rows, self.changed * self.rounds))

    def fill(self) -> None:
        keys = [key_of(self.kind, number) for number in self.numbers]
        with psycopg.connect(self.pipeline.source, autocommit=True) as connection:
            connection.execute(f"CREATE TABLE item (id {self.kind} PRIMARY KEY, n bigint, note text)".encode())
            self.pipeline.begin()
            connection.execute(
                f"INSERT INTO item SELECT *, 'a note' FROM unnest(%s::{self.kind}[], %s::bigint[])".encode(),
                (keys, self.numbers),
            )
        self.pipeline.run()
        alone(written, self.kind, self.rows, self.pipeline.table("current", "item"))

    def run(self, number: int) -> Taken:
        """Change rows that were not changed before, and measure the run that merges them."""
        begins = number * self.changed % len(self.numbers)
        self.change(self.numbers[begins : begins + self.changed])
        return Meter().of(self.pipeline.run)

    def change(self, numbers: Sequence[int]) -> None:
        update = f"UPDATE item SET n = n + 1, note = 'changed' WHERE id = ANY(%s::{self.kind}[])"
        with psycopg.connect(self.pipeline.source, autocommit=True) as connection:
            connection.execute(update.encode(), ([key_of(self.kind, number) for number in numbers],))

    def check(self) -> None:
        """That each change is in current, and each row once."""
        with psycopg.connect(self.pipeline.source) as connection:
            changed = connection.execute("SELECT count(*) FROM item WHERE note = 'changed'").fetchone()
        found = alone(counted, self.pipeline.table("current", "item"))
        if changed is None or found != (self.rows, changed[0]):
            raise Refused(f"current has {found[0]} rows, {found[1]} of them changed; these should be {changed}")


def alone(work: Callable[..., Any], *arguments: object) -> Any:
    """In a process of its own, so that no Spark has memory beside what is measured."""
    with multiprocessing.get_context("spawn").Pool(1) as process:
        return process.apply(work, arguments)


def written(kind: Kind, rows: int, current: Path) -> None:
    with warm_session() as spark:
        write(rows_of(spark, kind, 0, rows), "overwrite", current)


def counted(current: Path) -> tuple[int, int]:
    """The table's rows, and those that were changed."""
    with warm_session() as spark:
        row = spark.read.format("delta").load(str(current)).selectExpr("count(*)", "count_if(note = 'changed')").first()
        assert row is not None
        return row[0], row[1]


@contextmanager
def watched_memory(facts: dict[str, float]) -> Iterator[None]:
    """`peak_mb` is the most memory that the descendants of this process have together while the block runs."""
    stop, own = threading.Event(), psutil.Process()

    def watch() -> None:
        while not stop.wait(0.1):
            total = 0
            for process in own.children(recursive=True):
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            facts["peak_mb"] = max(facts["peak_mb"], total / 2**20)

    facts["peak_mb"] = 0.0
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def whole_runs(kind: Kind, changed: int, setting: Setting) -> Pairs:
    with running(setting.folder / "postgres", 18, **SERVER) as server:
        large, small = (
            captured_table(server, kind, rows, changed, setting)
            for rows in (setting.size, min(MILLION, setting.size // 10))
        )
        for number in range(setting.rounds):
            facts = {"files": float(len(list(large.pipeline.table("current", "item").glob("*.parquet"))))}

            def watched(number: int = number, facts: dict[str, float] = facts) -> Taken:
                with watched_memory(facts):
                    return large.run(number)

            pair = in_turns(number, watched, partial(small.run, number))
            yield Pair(pair.ours, pair.beside, facts)
        for table in (large, small):
            table.check()


def captured_table(server: PostgresServer, kind: Kind, rows: int, changed: int, setting: Setting) -> CapturedTable:
    pipeline = pipeline_on(server, f"source_{rows}", setting.folder / f"lake_{rows}")
    table = CapturedTable(pipeline, kind, rows, changed, setting.rounds)
    table.fill()
    return table


ROWS: Final[dict[Scale, int]] = {"tiny": 10_000, "small": 1_000_000, "full": 10_000_000}


def benchmark(kind: Kind, changed: int) -> Benchmark:
    return Benchmark(
        name=f"large-{kind}-{changed}",
        what=f"{changed:,} updates all over a table whose key is a {kind}",
        beside="DeltaTable.merge into current alone",
        goals=(Goal("ratio", 0.5),),
        unit="rows",
        sizes=ROWS,
        pairs=partial(pairs, kind, changed),
    )


def whole_benchmark(kind: Kind, changed: int) -> Benchmark:
    return Benchmark(
        name=f"large-whole-{kind}-{changed}",
        what=f"a whole run with {changed:,} updates all over a table whose key is a {kind}",
        beside="the same of a table of a million rows",
        goals=(Goal("ratio", 1.5), Goal("peak_mb", 1500)),
        unit="rows",
        sizes={"tiny": 10_000, "small": 10_000_000, "full": 100_000_000},
        pairs=partial(whole_runs, kind, changed),
    )


KINDS: Final[tuple[Kind, ...]] = ("bigint", "uuid")
BENCHMARKS = (
    *(benchmark(kind, changed) for kind in KINDS for changed in (1_000, 100_000)),
    *(whole_benchmark(kind, changed) for kind in KINDS for changed in (1_000, 10_000)),
)
CURVES = tuple(
    Curve(
        name=f"large-{kind}",
        title=f"1,000 updates all over a table whose key is a {kind}",
        x="rows of the table",
        y="seconds, in a warm session",
        ours="Tidemark",
        beside="DeltaTable.merge",
        sizes={
            "tiny": (1_000, 10_000),
            "small": (100_000, 1_000_000),
            "full": (1_000_000, 10_000_000, 30_000_000, 100_000_000),
        },
        points=partial(growing, kind),
    )
    for kind in KINDS
)

if __name__ == "__main__":
    main(BENCHMARKS, CURVES, __doc__)
