"""Few changes in many tables that exist: `python -m benchmarks.many_tables [--tables N] [--rows N] [--there N]`.

The daily case of nearly every pipeline. Staged files are written by hand, so that the merge application is measured
alone: N tables that hold `--there` rows get `--rows` changes each (updates for the most part, some inserts and deletes,
one in ten updates without its long value). Beside it, in the same warm session and over tables of the same rows, what a
plain PySpark script does: append the changes to a history, MERGE the newest per key. Rounds alternate; medians of
`--rounds`. Seconds are of the machine, CPU seconds of driver JVM and Python, Spark jobs as the scheduler counted them.

With `--cold` one plan more is applied by spark-submit, as a run does it: start, merge, stop.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from delta.tables import DeltaTable
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

from tidemark.formats import layout
from tidemark.formats.columns import staged_schema
from tidemark.formats.plan import MergePlan, PlannedBatch, PlannedFile, PlannedTable
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.schema.table import Column, TableSchema
from tidemark.target.merge import apply_plan
from tidemark.target.session import start, table_session

REPOSITORY = Path(__file__).resolve().parents[1]
PIPELINE = "bench"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
COLUMNS = {
    "id": "bigint",
    "customer": "int",
    "name": "string",
    "price": "decimal(10,2)",
    "weight": "double",
    "created": "timestamp",
    "active": "boolean",
    "note": "string",
}


@dataclass
class SourceTable:
    """What a source would do to one table, staged: `next_batch` is one batch more."""

    lake: Path
    number: int
    random: random.Random
    keys: list[int] = field(default_factory=list)
    lsn: int = 0x1000
    batches: list[PlannedBatch] = field(default_factory=list)

    @property
    def schema(self) -> TableSchema:
        columns = tuple(Column(name, target, 25, -1, target) for name, target in COLUMNS.items())
        return TableSchema(TableName("public", f"t{self.number:04}"), 1, 16384, "default", ("id",), columns)

    def next_batch(self, inserts: int, updates: int = 0, deletes: int = 0, unchanged: float = 0.0) -> PlannedTable:
        start = self.lsn
        rows: list[dict[str, Any]] = []
        first = max(self.keys, default=0) + 1
        for key in range(first, first + inserts):
            rows.append(self._row("insert", key))
        for key in self.random.sample(self.keys, updates + deletes) if updates + deletes else []:
            if len(rows) < inserts + updates:
                rows.append(self._row("update", key, has_note=self.random.random() >= unchanged))
            else:
                rows.append({**dict.fromkeys(self._row("delete", key)), "_op": "delete", "id": key})
                self.keys.remove(key)
        self.keys += range(first, first + inserts)
        masked = 0
        for ordinal, row in enumerate(rows):
            masked += bool(row.get("_unchanged"))
            row |= {"_generation": 1, "_commit_lsn": start, "_ordinal": ordinal, "_xid": start}
            row |= {"_committed_at": NOON + timedelta(seconds=start)}
        self.lsn += 0x10
        batch = PlannedBatch(Lsn(start), Lsn(self.lsn), (self._written(rows, Lsn(start)),), masked, 0, 0)
        after = self.batches[-1].end_lsn if self.batches else None
        self.batches.append(batch)
        return PlannedTable(str(self.schema.table), after, (self.schema,), (batch,))

    def _row(self, op: str, key: int, *, has_note: bool = True) -> dict[str, Any]:
        return {
            "_op": op,
            "id": key,
            "customer": self.random.randrange(5000),
            "name": f"name of {key}",
            "price": None,
            "weight": self.random.random(),
            "created": NOON + timedelta(seconds=key),
            "active": bool(key % 2),
            "note": f"a note of some length {self.random.random()}" * 4 if has_note else None,
            "_unchanged": None if has_note else ["note"],
        }

    def _written(self, rows: Sequence[dict[str, Any]], lsn: Lsn) -> PlannedFile:
        folder = layout.batch_folder(PIPELINE, 1, lsn, "attempt")
        path = layout.changes_file(folder, self.schema.table, 1, 1)
        file = self.lake / path
        file.parent.mkdir(parents=True, exist_ok=True)
        shape = staged_schema(self.schema)
        pq.write_table(pa.Table.from_pylist(list(rows), shape), file, compression="zstd")
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        return PlannedFile(path, len(rows), file.stat().st_size, sha256, 1)


@dataclass(frozen=True)
class Taken:
    """What something took."""

    seconds: float
    cpu_s: float
    jobs: int


class Meter:
    """Seconds, CPU seconds and Spark jobs of this process and its JVM."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._process = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/stat")
        self._scheduler = spark.sparkContext._jsc.sc().dagScheduler()

    def _now(self) -> tuple[float, float, int]:
        fields = self._process.read_text().rpartition(")")[2].split()
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + time.process_time()
        return time.perf_counter(), cpu, int(self._scheduler.numTotalJobs())

    def of(self, work: Callable[[], object]) -> Taken:
        before = self._now()
        work()
        after = self._now()
        return Taken(after[0] - before[0], after[1] - before[1], after[2] - before[2])


def plain_script(spark: SparkSession, lake: Path, tables: Sequence[PlannedTable], threads: int) -> None:
    """Append the staged rows to a history, MERGE the newest per key, a session and a thread per table."""

    def one(table: PlannedTable) -> None:
        session = table_session(spark, pool=table.table, lake=str(lake))
        session.conf.set("spark.sql.shuffle.partitions", "1")
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

    with ThreadPoolExecutor(max_workers=threads) as pool:
        list(pool.map(one, tables))


def cold(lake: Path, plan: MergePlan) -> Taken:
    """spark-submit of the merge application with this plan, as a local run starts it."""
    uri = lake / layout.plan_file(plan.pipeline, plan.plan)
    uri.parent.mkdir(parents=True, exist_ok=True)
    uri.write_text(plan.to_json())
    bin_folder = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY / "include"),
        "PYSPARK_PYTHON": sys.executable,
        "PATH": os.pathsep.join([str(bin_folder), os.environ.get("PATH", os.defpath)]),
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    application = str(REPOSITORY / "spark_apps" / "merge_batch.py")
    command = [str(bin_folder / "spark-submit"), "--master", "local[*]", "--jars", jars()]
    subprocess.run([*command, application, "--manifest", str(uri)], env=environment, check=True, capture_output=True)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Taken(seconds, used, 0)


def jars() -> str:
    folder = Path(os.environ.get("TIDEMARK_SPARK_JARS") or REPOSITORY / ".tidemark" / "jars")
    return ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--rows", type=int, default=50, help="changes in each table and round")
    parser.add_argument("--there", type=int, default=2000, help="rows that each table holds before")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--unchanged", type=float, default=0.1, help="share of updates without their long value")
    parser.add_argument("--cold", action="store_true", help="apply one more round by spark-submit")
    parser.add_argument("--no-plain", action="store_true", help="leave out what it is held against")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="many-tables-") as folder:
        measure(Path(folder), options)


def measure(lake: Path, options: argparse.Namespace) -> None:
    settings = {"spark.master": "local[*]", "spark.jars": jars(), "spark.local.dir": str(lake / "spark")}
    settings["spark.ui.showConsoleProgress"] = "false"
    spark = start("many tables", settings)
    spark.sparkContext.setLogLevel("ERROR")
    meter = Meter(spark)
    tables = [SourceTable(lake, n, random.Random(n)) for n in range(options.tables)]

    def plan(name: str, planned: Sequence[PlannedTable]) -> MergePlan:
        return MergePlan(name, PIPELINE, 1, str(lake), options.threads, tuple(planned))

    def merged(name: str, planned: Sequence[PlannedTable]) -> None:
        result = apply_plan(spark, plan(name, planned))
        errors = [t.error for t in result.tables if t.error is not None]
        if errors:
            raise RuntimeError(str(errors[0]))

    def changes() -> list[PlannedTable]:
        some = max(1, options.rows // 10)
        return [t.next_batch(some, options.rows - 2 * some, some, options.unchanged) for t in tables]

    first = [t.next_batch(options.there) for t in tables]
    new = meter.of(lambda: merged("first", first))
    print(_line("new tables, first in this JVM", [new], options.tables), flush=True)
    if not options.no_plain:
        plain_script(spark, lake, first, options.threads)
    ours: list[Taken] = []
    plain: list[Taken] = []
    for n in range(options.rounds + 1):
        planned = changes()
        ours.append(meter.of(lambda n=n, planned=planned: merged(f"round-{n}", planned)))  # type: ignore[misc]
        if not options.no_plain:
            plain.append(meter.of(lambda planned=planned: plain_script(spark, lake, planned, options.threads)))  # type: ignore[misc]
    print(_line("merge, first round", ours[:1], options.tables))
    print(_line("merge", ours[1:], options.tables))
    if plain:
        print(_line("append and MERGE", plain[1:], options.tables))
        for figure in ("seconds", "cpu_s", "jobs"):
            ratios = [
                getattr(a, figure) / max(getattr(b, figure), 1e-9) for a, b in zip(ours[1:], plain[1:], strict=True)
            ]
            print(f"merge / append and MERGE, {figure}: {statistics.median(ratios):.2f}")
    if options.cold:
        planned = changes()
        spark.stop()
        print(_line("spark-submit, whole", [cold(lake, plan("cold", planned))], options.tables))


def _line(title: str, costs: Sequence[Taken], tables: int) -> str:
    seconds, cpu, jobs = (statistics.median(getattr(t, name) for t in costs) for name in ("seconds", "cpu_s", "jobs"))
    return (
        f"{title}: {seconds:.1f} s, {cpu:.1f} CPU-s; per table {seconds / tables:.3f} s, {cpu / tables:.3f} CPU-s, "
        f"{jobs / tables:.1f} jobs"
    )


if __name__ == "__main__":
    main()
