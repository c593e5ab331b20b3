"""A few changes of a table of any size: `python -m benchmarks.large_tables`.

`current` gets its rows as a backfill's chunks and OPTIMIZE leave them, in files of some hundred megabytes, without a
source: one row is merged, Spark appends the others. The keys are bigints, or uuids in no order, kept as text. Then rows
all over the table are updated. Beside each merge stands DeltaTable.merge of the same staged changes into a copy of
current, in the same warm session; it writes no history.
"""

from __future__ import annotations

import hashlib
import random
import resource
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.pairs import Benchmark, Curve, Goal, Meter, Pair, Pairs, Scale, Setting, main
from benchmarks.source_tables import NOON, PIPELINE, plan_of
from benchmarks.warm_spark import applied, jvm_pid, warm_session
from tidemark.formats import layout
from tidemark.formats.columns import staged_schema
from tidemark.formats.manifest import StagedFile
from tidemark.formats.merge_plan import MergePlan, PlannedBatch, PlannedTable
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.schema.table import Column, TableSchema

Kind = Literal["bigint", "uuid"]
ROWS_OF_A_FILE: Final = 4_000_000


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

    def key(self, number: int) -> int | str:
        if self.kind == "bigint":
            return number
        digits = hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def fill(self, spark: SparkSession) -> None:
        """Merge the first row, which makes the table, and have Spark append the others."""
        applied(spark, self.next_plan([0], op="insert"))
        digits = F.md5(F.col("id").cast("string"))
        cuts = [digits.substr(at, length) for at, length in ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))]
        rows = spark.range(1, self.rows, numPartitions=max(2, self.rows // ROWS_OF_A_FILE)).select(
            ("id" if self.kind == "bigint" else F.concat_ws("-", *cuts).alias("id")),
            F.col("id").alias("n"),
            F.concat(F.lit("note "), F.col("id") % 1000).alias("note"),
            F.lit(1).cast("bigint").alias("_commit_lsn"),
            F.lit(NOON).alias("_committed_at"),
            F.lit(None).cast("array<string>").alias("_holes"),
        )
        write = rows.write.format("delta").mode("append").option("compression", "zstd")  # as maintenance writes
        write.option("parquet.compression.codec.zstd.level", 1).save(str(self.current))

    def next_plan(self, numbers: Sequence[int], op: str = "update") -> MergePlan:
        start = 0x1000 + 0x10 * self.merges
        self.merges += 1
        rows: list[dict[str, Any]] = [
            {"_op": op, "id": self.key(number), "n": -self.merges, "note": "changed", "_ordinal": ordinal}
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


BENCHMARKS = tuple(benchmark(kind, changed) for kind in ("bigint", "uuid") for changed in (1_000, 100_000))
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
    for kind in ("bigint", "uuid")
)

if __name__ == "__main__":
    main(BENCHMARKS, CURVES, __doc__)
