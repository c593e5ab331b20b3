"""A backfill while capture runs, all of it in Delta, beside only reading it: `python -m benchmarks.backfill`.

One table with rows from before the capture. 500 of them are changed every second all the while, and capture runs
(drain, merge, confirm) go on in a loop, as their DAG would. The backfill is read by two processes, as by two mapped
tasks; every merge is a spark-submit of its own. The pair is of one and the same backfill: until all of its rows are in
Delta, and until its readers have them in Parquet. Ends by comparing number and sums of the rows of source and current.

`backfill-following` and `repair-following` do it beside a run that follows the source, which merges chunks while others
are read. A repair is a second backfill. It finds all rows equal, except those that change during it. The benchmarks
named by a kind of key, such as `backfill-uuid`, do the same with rows that do not lie in the order of their key.
"""

from __future__ import annotations

import logging
import multiprocessing
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import psycopg

from benchmarks import workloads
from benchmarks.bursts import following
from benchmarks.pairs import Benchmark, Goal, Meter, Pair, Pairs, Scale, Setting, Taken, main
from benchmarks.pipeline import DELTA, QUIET, SERVER, Pipeline, Refused, jars, pipeline_on
from benchmarks.workloads import OTHER_KEYS, KeyKind
from sandbox.services.postgres import PostgresServer, running, wait_for
from tidemark.backfill.backfill_report import report
from tidemark.backfill.backfill_tables import BackfillRequest
from tidemark.backfill.planning import plan
from tidemark.backfill.range_reading import read_chunks
from tidemark.capture.following.follower_wait import wait_for_follower
from tidemark.errors import RetryError

TABLE = "public.measurements"
WRITES = 500  # rows changed per second
READERS = 2
WAIT_S: Final = 600.0  # for the slot, and for a table that a capture's merge has, as the DAG's tasks wait
SUMS = "count(*), sum(id), sum(price)"


Beside = Callable[[Pipeline], AbstractContextManager[Any]]


def pairs(setting: Setting, capturing: Beside, *, again: bool = False, key: KeyKind = "bigint") -> Pairs:
    """One pair a round, with the capture beside it; `again` yields the one of a second backfill."""
    with running(setting.folder / "postgres", 18, **SERVER) as server:
        for number in range(setting.rounds):
            pipeline = pipeline_on(server, f"source{number}", setting.folder / f"lake{number}")
            with psycopg.connect(pipeline.source, autocommit=True) as connection:
                workloads.fill(connection, setting.size, key)
            copy_s = statistics.median(copied(server, f"source{number}") for _ in range(2))
            pipeline.begin()
            pair = backfilled(pipeline, setting.size, copy_s, capturing)
            yield backfilled(pipeline, setting.size, copy_s, capturing) if again else pair
            with psycopg.connect(pipeline.source, autocommit=True) as connection:
                connection.execute("SELECT pg_drop_replication_slot(%s)", (pipeline.config.slot,))


def backfilled(pipeline: Pipeline, rows: int, copy_s: float, capturing: Beside) -> Pair:
    backfill = replace(pipeline, dag=f"backfill{pipeline.runs}")
    meter = Meter()
    facts = {"copy_s": copy_s}
    reading = Taken(0)

    def whole() -> None:
        nonlocal reading
        plan(backfill.task("plan"), request=BackfillRequest(tables=(TABLE,), readers=READERS))
        reading = meter.of(lambda: facts.update(read(backfill)))
        # Its drain begins a run; the report is of the one before.
        run = replace(backfill, merge_wait_s=WAIT_S, slot_wait_s=WAIT_S)
        is_left_to_follower = wait_for_follower(backfill.task("drain"), wait_s=WAIT_S)
        facts["by_follower"] = float(is_left_to_follower)
        if not is_left_to_follower:
            for stage in (run.drain, run.merge, run.confirm):
                patiently(stage)
        patiently(lambda: report(backfill.task("report")))

    with written(pipeline.source, rows), capturing(pipeline):
        taken = meter.of(whole)
    pipeline.run()
    compare(pipeline)
    return Pair(taken, reading, {**facts, "rows_per_s": rows / taken.seconds})


def patiently(stage: Callable[[], object]) -> None:
    """Try again where another DAG's task is at it, as Airflow would."""
    while True:
        try:
            stage()
        except RetryError:
            time.sleep(3)
        else:
            return


def read(pipeline: Pipeline) -> dict[str, float]:
    """Both readers, to their end; the most memory that one had."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(READERS) as readers:
        peaks = readers.map(read_as_task, [(pipeline, number) for number in range(READERS)], chunksize=1)
    return {"reader_mb": max(peaks)}


def read_as_task(share: tuple[Pipeline, int]) -> int:
    """One reader, in a process of its own; its peak memory in MB."""
    logging.basicConfig(level=logging.ERROR)
    pipeline, number = share
    read_chunks(pipeline.task(f"read_chunks/{number}"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


@contextmanager
def written(conninfo: str, rows: int) -> Iterator[None]:
    """Rows all over the table are changed while the block runs."""
    stop = threading.Event()

    def write() -> None:
        share = max(1, min(WRITES, rows) // 10)
        with psycopg.connect(conninfo, autocommit=True) as connection:
            number = 0
            while not stop.wait(0.1):
                number += 1
                connection.execute(
                    "UPDATE measurements SET price = price + 1, note = 'changed' WHERE id = ANY("
                    "SELECT (hashint8(i + %s)::bigint + 2147483648) %% %s FROM generate_series(1, %s) i)",
                    (number * 1000, rows, share),
                )

    with beside(write, stop):
        yield


@contextmanager
def captured(pipeline: Pipeline) -> Iterator[None]:
    """Capture runs follow each other while the block runs."""
    stop = threading.Event()

    def capture() -> None:
        while not stop.wait(5):
            for stage in (pipeline.drain, pipeline.merge, pipeline.confirm):
                patiently(stage)

    with beside(capture, stop):
        yield


@contextmanager
def followed(pipeline: Pipeline) -> Iterator[None]:
    """A run follows the source while the block runs; its driver has started before."""
    with following(pipeline) as run:
        wait_for("the run follows the source", lambda: bool(run.errors) or run.is_at_work())
        yield


@contextmanager
def beside(work: Callable[[], None], stop: threading.Event) -> Iterator[None]:
    """A thread; what went wrong in it is raised when it has been told to stop."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as failed:
            failures.append(failed)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]


def copied(server: PostgresServer, database: str) -> float:
    """Seconds of `psql -c "COPY measurements TO STDOUT" > /dev/null`: what the server alone needs for it."""
    began = time.perf_counter()
    psql = [str(server.binary("psql")), "-qX", "-d", server.conninfo_for_programs(database)]
    subprocess.run([*psql, "-c", "COPY measurements TO STDOUT"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def compare(pipeline: Pipeline) -> None:
    """Number of rows, and sums of key and price, of source and current; the latter by a Spark of its own."""
    program = (
        "import sys; from pyspark.sql import SparkSession\n"
        "b = SparkSession.builder.master('local[*]')\n"
        "for pair in sys.argv[2:]: b = b.config(*pair.split('=', 1))\n"
        f"r = b.getOrCreate().read.format('delta').load(sys.argv[1]).selectExpr(*{SUMS.split(', ')}).first()\n"
        "print('TOTAL', *r)\n"
    )
    settings = [f"{name}={value}" for name, value in {**DELTA, **QUIET, "spark.jars": jars()}.items()]
    table = str(pipeline.table("current", "measurements"))
    process = subprocess.run([sys.executable, "-c", program, table, *settings], capture_output=True, text=True)
    target = next((line for line in process.stdout.splitlines() if line.startswith("TOTAL")), process.stderr[-500:])
    with psycopg.connect(pipeline.source) as connection:
        source: Any = connection.execute(f"SELECT concat_ws(' ', {SUMS}) FROM measurements".encode()).fetchone()
    if target != f"TOTAL {source[0]}":
        raise Refused(f"source: {source[0]}; current: {target}")


def benchmark(
    name: str, what: str, run: Callable[[Setting], Pairs], sizes: Mapping[Scale, int], goal: float = 1.5
) -> Benchmark:
    return Benchmark(
        name=name,
        what=f"rows of a {what}",
        beside="reading them",
        goals=(Goal("ratio", goal),),
        unit="rows",
        sizes=sizes,
        pairs=run,
    )


RUNS: Final = partial(pairs, capturing=captured)
FOLLOWING: Final = partial(pairs, capturing=followed)
REPAIR: Final = partial(FOLLOWING, again=True)
SIZES: Final[Mapping[Scale, int]] = {"tiny": 1_000, "small": 500_000, "full": 5_000_000}
# What two drivers take to start is the same for any number of rows.
LARGE: Final[Mapping[Scale, int]] = {"tiny": 2_000, "small": 2_000_000, "full": 20_000_000}


def of_another_key(key: KeyKind) -> Iterator[Benchmark]:
    what = f"backfill of {key} keys, all in Delta, a run following"
    yield benchmark(f"backfill-{key}", what, partial(FOLLOWING, key=key), LARGE, 1.3)
    yield benchmark(f"repair-{key}", f"second {what}", partial(REPAIR, key=key), LARGE, 1.2)


BENCHMARKS = (
    benchmark("backfill", "backfill, all in Delta, capture running", RUNS, SIZES),
    benchmark("backfill-large", "backfill, all in Delta, capture running", RUNS, LARGE),
    benchmark("backfill-following", "backfill, all in Delta, a run following", FOLLOWING, LARGE, 1.3),
    benchmark("repair-following", "second backfill, all in Delta, a run following", REPAIR, LARGE, 1.2),
    *(line for key in OTHER_KEYS for line in of_another_key(key)),
)

if __name__ == "__main__":
    main(BENCHMARKS, about=__doc__)
