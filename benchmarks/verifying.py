"""A verify of a whole table, and what a digest would spare it: `python -m benchmarks.verifying`.

Beside the verify stands a backfill of the same table, in which it finds every row as it is: both read all rows of the
source and look at all of the lake, by two readers and one spark-submit. Nothing is written meanwhile, so that both see
the same rows. Beside sending the texts of all rows to one client stands hashing them where they lie, as a digest
that Spark could work out as well; the facts are CPU seconds of the source's server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import psutil
import psycopg
from psycopg import sql

from benchmarks import workloads
from benchmarks.backfill import READERS, TABLE, read
from benchmarks.pairs import Benchmark, Goal, Meter, Pairs, Setting, Taken, in_turns, main
from benchmarks.pipeline import SERVER, Pipeline, Refused, one_pipeline
from sandbox.services.postgres import PostgresServer, running
from tidemark.backfill.backfill_tables import BackfillRequest
from tidemark.backfill.planning import plan
from tidemark.backfill.verify_report import report
from tidemark.backfill.verifying import VerifyRequest, plan_verify

PART = 1_000_000


def pairs(setting: Setting) -> Pairs:
    with one_pipeline(setting.folder) as pipeline:
        with psycopg.connect(pipeline.source, autocommit=True) as connection:
            workloads.fill(connection, setting.size)
        pipeline.begin()
        backfilled(replace(pipeline, dag="backfill", runs=0))
        meter, reading = Meter(), dict[str, float]()

        def timed(dag: str, work: Callable[[Pipeline], float], number: int) -> Taken:
            def worked() -> None:
                reading[f"{dag}_read_s"] = work(replace(pipeline, dag=dag, runs=number))

            return meter.of(worked)

        for number in range(setting.rounds):
            pair = in_turns(
                number,
                partial(timed, "verify", verified, number + 1),
                partial(timed, "backfill", backfilled, number + 1),
            )
            yield replace(pair, facts=dict(reading))


def verified(verify: Pipeline) -> float:
    """Seconds until all of it was read."""
    request = VerifyRequest(tables=(TABLE,), share=Fraction(1), readers=READERS)
    began = time.perf_counter()
    plan_verify(verify.task("plan"), request=request)
    read(verify)
    took = time.perf_counter() - began
    replace(verify).run()  # its drain begins a run; the report is of the one before
    (proof,) = report(verify.task("report")).tables
    if proof.outcome.rows == 0:
        raise Refused("nothing was compared")
    return took


def backfilled(backfill: Pipeline) -> float:
    """Seconds until all of it was read."""
    began = time.perf_counter()
    plan(backfill.task("plan"), request=BackfillRequest(tables=(TABLE,), readers=READERS))
    read(backfill)
    took = time.perf_counter() - began
    replace(backfill).run()
    return took


# --- digests ----------------------------------------------------------------------------------------------------------


def digests(setting: Setting) -> Pairs:
    with (
        running(setting.folder / "postgres", 18, **SERVER) as server,
        psycopg.connect(server.conninfo(), autocommit=True) as connection,
    ):
        workloads.fill(connection, setting.size)
        connection.execute("SET max_parallel_workers_per_gather = 0")
        named = "SELECT attname::text FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum"
        columns = [name for (name,) in connection.execute(named, (TABLE,))]
        for number in range(setting.rounds):
            cpu_s = {"sent": 0.0, "hashed": 0.0}

            def timed(name: str, work: Callable[..., None], cpu_s: dict[str, float] = cpu_s) -> Taken:
                before = server_cpu_s(server)
                taken = Meter().of(lambda: work(connection, columns, setting.size))
                cpu_s[name] = server_cpu_s(server) - before
                return taken

            pair = in_turns(number, lambda: timed("sent", sent), lambda: timed("hashed", hashed))
            yield replace(pair, facts={f"{name}_source_cpu_s": seconds for name, seconds in cpu_s.items()})


def server_cpu_s(server: PostgresServer) -> float:
    """CPU seconds of the server and of all backends that it ever had."""
    postmaster = psutil.Process(int((server.data / "postmaster.pid").read_text().split()[0]))
    times = [postmaster.cpu_times(), *(child.cpu_times() for child in postmaster.children(recursive=True))]
    ended = times[0].children_user + times[0].children_system
    return float(ended + sum(each.user + each.system for each in times))


def in_parts(rows: int) -> Iterator[tuple[int, int]]:
    for start in range(0, rows, PART):
        yield start, min(start + PART, rows) - 1


def sent(connection: psycopg.Connection[Any], columns: list[str], rows: int) -> None:
    texts = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(column)) for column in columns)
    for start, end in in_parts(rows):
        query = sql.SQL("COPY (SELECT {} FROM measurements WHERE id BETWEEN {} AND {}) TO STDOUT (FORMAT binary)")
        with connection.cursor().copy(query.format(texts, sql.Literal(start), sql.Literal(end))) as part:
            for _ in part:
                pass


def hashed(connection: psycopg.Connection[Any], columns: list[str], rows: int) -> None:
    """A sum, so that the order of rows does not matter; md5, which Spark has too."""
    row = "concat_ws(chr(31), " + ", ".join(f"coalesce({column}::text, chr(30))" for column in columns) + ")"
    digest = f"sum(('x' || left(md5({row}), 15))::bit(60)::bigint::numeric)"
    query = f"SELECT count(*), {digest} FROM measurements WHERE id BETWEEN %s AND %s"
    for part in in_parts(rows):
        connection.execute(query.encode(), part).fetchone()


BENCHMARKS = (
    Benchmark(
        name="verify",
        what="rows of a whole table proven equal",
        beside="a backfill of it that changes nothing",
        goals=(Goal("ratio", 1.0),),
        unit="rows",
        sizes={"tiny": 1_000, "small": 500_000, "full": 5_000_000},
        pairs=pairs,
    ),
    Benchmark(
        name="verify-digest",
        what="rows sent as texts",
        beside="hashing the same texts at the source",
        goals=(Goal("ratio", 1.0),),
        unit="rows",
        sizes={"tiny": 1_000, "small": 1_000_000, "full": 10_000_000},
        pairs=digests,
    ),
)

if __name__ == "__main__":
    main(BENCHMARKS, about=__doc__)
