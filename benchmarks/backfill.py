"""A backfill while capture runs, beside `COPY … TO STDOUT`: `python -m benchmarks.backfill [--rows N] [--writes N]`.

One table of 8 columns with N rows from before the capture (N = 5,000,000 is the full size). Some rows are changed every
second all the while, and capture runs (drain, merge, confirm) go on in a loop, as their DAG would. The backfill is read
by two processes, as by two mapped tasks; every merge is a spark-submit of its own on `local[*]`. Before the pipeline
exists, in the same run, the table is copied as text and as binary into nothing: what the server alone needs for it.
Ends by comparing number and sums of the rows of source and current.

With `--rounds N` all of it is done N times, and each time twice: with the chunks' files added as they are, and with all
of their rows through Spark. Then the medians say how long it took until all rows were in Delta, beside reading them.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from sandbox.services.postgres import PostgresServer, running
from tidemark.backfill.planning import BackfillRequest, plan
from tidemark.backfill.ranges import read_chunks
from tidemark.backfill.reporting import report
from tidemark.capture.confirm import confirm
from tidemark.capture.drain import drain
from tidemark.capture.merging import ingest, leased_plan
from tidemark.capture.preflight import preflight
from tidemark.config import PipelineConfig, TableRule
from tidemark.errors import RetryError
from tidemark.formats import layout
from tidemark.ledger import migrations
from tidemark.run import Run
from tidemark.spark_connection import SparkConnection

REPOSITORY = Path(__file__).resolve().parents[1]
TABLE = "public.measurements"
BLOCK = 100_000


def fill(connection: psycopg.Connection[Any], rows: int) -> None:
    connection.execute(
        "CREATE TABLE measurements (id bigint PRIMARY KEY, customer int, name text, price numeric(10,2), "
        "weight float8, created timestamptz, active bool, note varchar(40))"
    )
    for start in range(0, rows, BLOCK):
        connection.execute(
            "INSERT INTO measurements SELECT i, i %% 5000, 'name of ' || i, (i %% 100000) / 100.0, i * 0.37, "
            "timestamptz '2024-01-02 03:04:05+00' + i * interval '1 millisecond', i %% 2 = 0, "
            "CASE WHEN i %% 10 > 0 THEN 'a note of some length' END FROM generate_series(%s::bigint, %s) i",
            (start, min(start + BLOCK, rows) - 1),
        )
    connection.execute("VACUUM ANALYZE measurements")


def copied(server: PostgresServer, options: str) -> float:
    """Seconds of `psql -c "COPY measurements TO STDOUT" > /dev/null`."""
    began = time.perf_counter()
    command = f"COPY measurements TO STDOUT {options}"
    psql = str(server.binary("psql"))
    subprocess.run(
        [psql, "-qX", "-d", server.conninfo_for_programs(), "-c", command], check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - began


@dataclass
class Pipeline:
    """The stages of both DAGs, with what each took. `spark_mb` is the most memory that a driver had."""

    config: PipelineConfig
    source: str
    ledger: str
    jars: str
    as_they_are: bool = True
    seconds: dict[str, float] = field(default_factory=dict)
    spark_mb: int = 0

    def stages(self, dag: str, run_id: str) -> None:
        """drain, merge, confirm, each tried again as the DAG would where the other DAG is at it."""
        name = f"{dag}/{run_id}"
        self.until_done(f"{dag}: drain", lambda: drain(self.run(name, "drain")))
        self.until_done(f"{dag}: merge", lambda: self.merge(self.run(name, "merge")))
        self.until_done(f"{dag}: confirm", lambda: confirm(self.run(name, "confirm")))

    def run(self, name: str, task: str) -> Run:
        return Run(self.config, self.source, self.ledger, name, f"{name}/{task}")

    def until_done(self, title: str, stage: Any) -> None:
        while True:
            began = time.perf_counter()
            try:
                stage()
                self.seconds[title] = self.seconds.get(title, 0.0) + time.perf_counter() - began
                return
            except RetryError:
                time.sleep(3)

    def merge(self, run: Run) -> None:
        ingest(run)
        with leased_plan(run) as plan:
            if plan is not None:
                self.submit(f"{self.config.lake}/{layout.plan_file(plan.pipeline, plan.plan)}")
        for table in ingest(run).tables:
            if table.error is not None:
                raise RuntimeError(f"{table.table}: {table.error}")

    def submit(self, uri: str) -> None:
        bin_folder = Path(sys.executable).parent
        command = [str(bin_folder / "spark-submit"), "--master", "local[*]", "--jars", self.jars]
        command += ["--conf", f"spark.tidemark.chunksAsTheyAre={str(self.as_they_are).lower()}"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY / "include"),
            "PYSPARK_PYTHON": sys.executable,
            "PATH": os.pathsep.join([str(bin_folder), os.environ.get("PATH", os.defpath)]),
        }
        process = subprocess.Popen(
            [*command, str(REPOSITORY / "spark_apps" / "merge_batch.py"), "--manifest", uri],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        _, output = process.communicate()
        if process.returncode:
            raise RuntimeError(output[-3000:])
        self.spark_mb = max(self.spark_mb, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)


def read(config: PipelineConfig, source: str, ledger: str, number: int, figures: Any) -> None:
    """One reader, in a process of its own; tells its rows and its peak memory in MB."""
    logging.basicConfig(level=logging.WARNING)
    name = f"backfill/one/read_chunks/{number}"
    result = read_chunks(Run(config, source=source, ledger=ledger, run_id="backfill/one", holder=name))
    figures.put((result.rows, result.chunks, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024))


def write(conninfo: str, rows: int, per_second: int, stop: threading.Event, counted: list[int]) -> None:
    """Change rows all over the table, and insert some, until told to stop."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        number = 0
        while not stop.wait(0.1):
            number += 1
            share = max(1, per_second // 10)
            cursor = connection.execute(
                "UPDATE measurements SET price = price + 1, note = 'changed' WHERE id = ANY("
                "SELECT (hashint8(i + %s)::bigint + 2147483648) %% %s FROM generate_series(1, %s) i)",
                (number * 1000, rows, share),
            )
            counted[0] += cursor.rowcount


def one(conninfo: str, query: str) -> Any:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]


def compare(pipeline: Pipeline) -> str:
    """Number of rows, and sums of key and price, of source and current; the latter by a Spark of its own."""
    program = (
        "import sys; from pyspark.sql import SparkSession\n"
        "s = SparkSession.builder.config('spark.sql.extensions', 'io.delta.sql.DeltaSparkSessionExtension')"
        ".config('spark.sql.catalog.spark_catalog', 'org.apache.spark.sql.delta.catalog.DeltaCatalog').getOrCreate()\n"
        "r = s.read.format('delta').load(sys.argv[1]).selectExpr('count(*)', 'sum(id)', 'sum(price)').first()\n"
        "print('TOTAL', *r)\n"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(program)
        script.flush()
        config = pipeline.config
        path = f"{config.lake}/{config.pipeline}/current/public/measurements"
        process = subprocess.run(
            [str(Path(sys.executable).parent / "spark-submit"), "--jars", pipeline.jars, script.name, path],
            capture_output=True,
            text=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )
    target = next((line for line in process.stdout.splitlines() if line.startswith("TOTAL")), process.stderr[-500:])
    source = one(pipeline.source, "SELECT concat_ws(' ', count(*), sum(id), sum(price)) FROM measurements")
    if target != f"TOTAL {source}":
        raise RuntimeError(f"source: {source}; current: {target}")
    return str(source)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--writes", type=int, default=500, help="rows changed per second")
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where server and lake lie (default: a temporary folder)")
    parser.add_argument("--rounds", type=int, default=0, help="how often to measure both ways beside each other")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if not arguments.rounds:
        measure(arguments, as_they_are=True)
        return
    took: dict[bool, list[Took]] = {True: [], False: []}
    for number in range(arguments.rounds):
        for as_they_are in (True, False) if number % 2 == 0 else (False, True):
            took[as_they_are].append(measure(arguments, as_they_are=as_they_are))
    for as_they_are, rounds in took.items():
        reading = statistics.median(t.read_s for t in rounds)
        delta = statistics.median(t.whole_s for t in rounds)
        ratio = statistics.median(t.whole_s / t.read_s for t in rounds)
        way = "files as they are" if as_they_are else "through Spark"
        print(f"{way:<18} read {reading:6.1f} s, in Delta {delta:6.1f} s, {ratio:.2f} times (median of {len(rounds)})")


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds to read the chunks, and until all of them were in Delta."""

    read_s: float
    whole_s: float


def measure(arguments: argparse.Namespace, *, as_they_are: bool) -> Took:
    folder = Path(os.environ.get("TIDEMARK_SPARK_JARS") or REPOSITORY / ".tidemark" / "jars")
    jars = ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder) as temporary,
        running(Path(temporary) / "postgres", 18, max_wal_size="8GB", shared_buffers="512MB") as server,
    ):
        with psycopg.connect(server.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE ledger")
        source, ledger = server.conninfo(), server.conninfo("ledger")
        with psycopg.connect(source, autocommit=True) as connection:
            fill(connection, arguments.rows)
        migrations.migrate(ledger)
        config = PipelineConfig(
            pipeline="benchmark",
            source_connection="source",
            slot="benchmark",
            publication="benchmark",
            manage_publication=True,
            tables=(TableRule(TABLE),),
            lake=str(Path(temporary) / "lake"),
            ledger_connection="ledger",
        )
        pipeline = Pipeline(config, source, ledger, jars, as_they_are)
        rows = arguments.rows
        print(f"{rows:,} rows on {os.cpu_count()} cores, {arguments.writes} of them changed every second", flush=True)
        for title, options in (("text", ""), ("binary", "(FORMAT binary)")):
            took = copied(server, options)
            print(f"  COPY TO STDOUT, {title:<7}  {took:6.1f} s  {rows / took:10,.0f} rows/s", flush=True)
        preflight(pipeline.run("0", "preflight"), spark=SparkConnection("local[*]")).raise_for_errors()
        pipeline.stages("capture", "0")
        stop, changed = threading.Event(), [0]
        writer = threading.Thread(target=write, args=(source, rows, arguments.writes, stop, changed), daemon=True)
        capture_stop = threading.Event()
        runs = [0]

        def capture() -> None:
            while not capture_stop.wait(5):
                runs[0] += 1
                pipeline.stages("capture", str(runs[0]))

        capturing = threading.Thread(target=capture, daemon=True)
        writer.start()
        capturing.start()
        began = time.perf_counter()
        request = BackfillRequest(tables=(TABLE,), readers=arguments.readers)
        plan(pipeline.run("backfill/one", "plan"), request=request)
        planned_s = time.perf_counter() - began
        context = multiprocessing.get_context("spawn")
        figures: Any = context.Queue()
        readers = [
            context.Process(target=read, args=(config, source, ledger, number, figures))
            for number in range(arguments.readers)
        ]
        for process in readers:
            process.start()
        results = [figures.get() for _ in readers]
        for process in readers:
            process.join()
        read_s = time.perf_counter() - began - planned_s
        retained = one(
            source,
            "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint FROM pg_replication_slots "
            "WHERE slot_name = 'benchmark'",
        )
        count, chunks = sum(r[0] for r in results), sum(r[1] for r in results)
        peak = max(r[2] for r in results)
        print(
            f"  read in chunks            {read_s:6.1f} s  {count / read_s:10,.0f} rows/s  ({chunks} chunks, plan "
            f"{planned_s:.1f} s, {peak} MB per reader, WAL retained {retained / 2**20:.0f} MB)",
            flush=True,
        )
        pipeline.stages("backfill", "one")
        while True:
            try:
                outcome = report(pipeline.run("backfill/one", "report"))
                break
            except RetryError:
                time.sleep(3)
        whole_s = time.perf_counter() - began
        stop.set()
        writer.join()
        capture_stop.set()
        capturing.join()
        pipeline.stages("capture", "last")
        print(
            f"  applied to Delta          {whole_s:6.1f} s  {rows / whole_s:10,.0f} rows/s  (Spark {pipeline.spark_mb} "
            f"MB, {runs[0]} capture runs, {changed[0]:,} rows changed meanwhile)",
            flush=True,
        )
        for title, seconds in pipeline.seconds.items():
            print(f"    {title:<20} {seconds:6.1f} s")
        print(outcome)
        print(f"  equal: {compare(pipeline)} (rows, sum of keys, sum of prices)")
        return Took(read_s, whole_s)


if __name__ == "__main__":
    main()
