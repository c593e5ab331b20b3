"""The drain beside `pg_recvlogical`, on the same WAL: `python -m benchmarks.drain`.

    drain-a  one table of 8 columns; of 31 changes 20 inserts, 10 updates and a delete, some thousand in a transaction
    drain-b  transactions of four changes in four tables, as pgbench's, behind the rows that the tables begin with
    drain-c  rows, and then one transaction that updates each of them twice
    drain-d  values of 2 kB that do not compress, stored out of line

`receive_s` beside each: the drain's own reader, which throws away what it gets.

Both read the whole of it over TCP from the embedded server, each time from a fresh copy of the slot: `pg_recvlogical -f
/dev/null` only receives, the drain also decodes, writes typed Parquet, fsyncs and registers. The drain is a process of
its own each time, whose most memory is told, and which has drained a slot without changes before: what it imports at
the first call is no part of it.
"""

from __future__ import annotations

import multiprocessing
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import workloads
from benchmarks.pairs import Benchmark, Curve, Goal, Meter, Pair, Pairs, Setting, Taken, in_turns, main
from benchmarks.pipeline import Pipeline, Refused, pipeline_on
from sandbox.services.postgres import PostgresServer, running
from tidemark.capture.continuity import ownership
from tidemark.ledger import leases, owned_objects
from tidemark.ledger.connection import open_ledger
from tidemark.lsn import Lsn
from tidemark.source.wal.replication import ReplicationStream

SLOT = "benchmark"
MAX_BYTES = 2**20  # that are read at once
BY_HAND = {"manage_publication": False}
Workload = Callable[[psycopg.Connection[Any], int], int]


def pairs(workload: Workload, setting: Setting) -> Pairs:
    with running(setting.folder / "postgres", 18, max_wal_size="8GB") as server:
        yield from beside_each_other(server, workload, setting)


def beside_each_other(server: PostgresServer, workload: Workload, setting: Setting) -> Pairs:
    """Each round on the WAL that the workload wrote, which is written once."""
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE PUBLICATION bench FOR ALL TABLES")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        changes = workload(connection, setting.size)
        connection.execute("CHECKPOINT")
        end = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert end is not None
        for number in range(setting.rounds):
            pipeline = pipeline_on(server, f"drained_{number}", setting.folder / f"lake_{number}", **BY_HAND)
            names = ("received", "discarded", pipeline.config.slot)
            received_slot, discarded_slot, own = [copy_of_slot(connection, f"{name}_{number}") for name in names]
            pipeline = on_the_servers_own(server, pipeline, own)
            peaks: list[int] = []

            warming = pipeline_on(server, f"warming_{number}", setting.folder / f"warming_{number}", **BY_HAND)
            slot = str(warming.config.slot)
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
            warming = on_the_servers_own(server, warming, slot)

            def ours(warming: Pipeline = warming, pipeline: Pipeline = pipeline, peaks: list[int] = peaks) -> Taken:
                taken, rows, peak_mb = in_a_process_of_its_own(warming, pipeline)
                if rows != changes:
                    raise Refused(f"{rows:,} changes were staged of {changes:,}")
                peaks.append(peak_mb)
                return taken

            pair = in_turns(number, ours, partial(received, server, received_slot, end[0]))
            receive_s = discarded(server, discarded_slot, Lsn.parse(end[0]))
            facts = {"changes_per_s": changes / pair.ours.seconds, "peak_mb": peaks[0], "receive_s": receive_s}
            yield Pair(pair.ours, pair.beside, facts)


def on_the_servers_own(server: PostgresServer, pipeline: Pipeline, slot: str) -> Pipeline:
    """The pipeline, with a slot that was made by hand: noted as its own, as `preflight --adopt-slot` does."""
    pipeline = replace(pipeline, source=server.conninfo(), config=replace(pipeline.config, slot=slot))
    with (
        leases.hold(pipeline.ledger, pipeline.config.pipeline, leases.SLOT, "benchmark") as lease,
        psycopg.connect(pipeline.source) as at_source,
        open_ledger(pipeline.ledger, pipeline.config.pipeline) as book,
    ):
        owned_objects.note(book, lease, ownership.owned_object(at_source, "slot", slot), "adopted")
    return pipeline


def copy_of_slot(connection: psycopg.Connection[Any], name: str) -> str:
    connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (SLOT, name))
    return name


def received(server: PostgresServer, slot: str, end_lsn: str) -> Taken:
    """What pg_recvlogical takes to read up to `end_lsn`."""
    command = [str(server.binary("pg_recvlogical")), "-d", server.conninfo_for_programs(), "-S", slot, "--start"]
    command += ["--endpos", end_lsn, "--no-loop", "-f", "/dev/null"]
    command += ["-o", "proto_version=1", "-o", "publication_names=bench", "-o", "messages=true"]
    return Meter().of(lambda: subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True))


def discarded(server: PostgresServer, slot: str, end_lsn: Lsn) -> float:
    """Seconds until the drain's reader has all of it, and does nothing with it: what a drain can come down to."""
    began = time.perf_counter()
    with ReplicationStream(
        server.conninfo(),
        application_name="benchmark",
        slot=slot,
        publication="bench",
        start=Lsn(0),
        confirmed=None,
    ) as stream:
        while stream.sent_lsn < end_lsn:
            stream.read(MAX_BYTES, 1.0)
    return time.perf_counter() - began


def drained(warming: Pipeline, pipeline: Pipeline) -> tuple[Taken, int, int]:
    """What one drain takes, its rows, and the most memory of this process in MB."""
    rows = 0

    def work() -> None:
        nonlocal rows
        rows = pipeline.drain().rows

    warming.drain()
    taken = Meter().of(work)
    return taken, rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def in_a_process_of_its_own(warming: Pipeline, pipeline: Pipeline) -> tuple[Taken, int, int]:
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(drained, warming, pipeline).result()


# --- workloads -------------------------------------------------------------------------------------------------------


def workload_a(connection: psycopg.Connection[Any], size: int) -> int:
    workloads.create(connection)
    return workloads.mixed(connection, size)


def workload_b(connection: psycopg.Connection[Any], size: int) -> int:
    return workloads.pgbench_like(connection, size // 4)


def workload_c(connection: psycopg.Connection[Any], size: int) -> int:
    workloads.create(connection)
    return workloads.one_transaction(connection, size * 2 // 3)


def workload_d(connection: psycopg.Connection[Any], size: int) -> int:
    return workloads.large_values(connection, size)


def growing(
    workload: Callable[[int], tuple[Workload, int]], sizes: Sequence[int], folder: Path
) -> Iterator[tuple[int, Pair]]:
    """One pair for each size, each on a server of its own."""
    for size in sizes:
        named, changes = workload(size)
        for pair in pairs(named, Setting(changes, 1, folder / str(size))):
            yield size, pair


def of_values(size: int) -> tuple[Workload, int]:
    """As many rows that their values have 64 MB together."""
    return partial(workloads.large_values, size=size), 64 * 2**20 // max(size, 64)


def of_transactions(size: int) -> tuple[Workload, int]:
    return workload_c, size


BENCHMARKS = (
    Benchmark(
        name="drain-a",
        what="drain of inserts, updates and deletes, to registered Parquet",
        beside="pg_recvlogical -f /dev/null, same WAL",
        goals=(Goal("times", 2.2),),
        unit="changes",
        sizes={"tiny": 310, "small": 620_000, "full": 3_100_000},
        pairs=partial(pairs, workload_a),
    ),
    Benchmark(
        name="drain-b",
        what="drain of small transactions, as pgbench's",
        beside="pg_recvlogical -f /dev/null, same WAL",
        goals=(Goal("times", 2.3),),
        unit="changes",
        sizes={"tiny": 400, "small": 240_000, "full": 1_200_000},
        pairs=partial(pairs, workload_b),
    ),
    Benchmark(
        name="drain-c",
        what="drain of one transaction",
        beside="pg_recvlogical -f /dev/null, same WAL",
        goals=(Goal("times", 1.8), Goal("peak_mb", 600)),
        unit="changes",
        sizes={"tiny": 300, "small": 600_000, "full": 3_000_000},
        pairs=partial(pairs, workload_c),
    ),
    Benchmark(
        name="drain-d",
        what="drain of values of 2 kB",
        beside="pg_recvlogical -f /dev/null, same WAL",
        goals=(Goal("times", 1.3), Goal("peak_mb", 600)),
        unit="rows",
        sizes={"tiny": 20, "small": 40_000, "full": 200_000},
        pairs=partial(pairs, workload_d),
    ),
)
CURVES = (
    Curve(
        name="value-size",
        title="Drain of 64 MB in values of one size",
        x="bytes of a value",
        y="seconds",
        ours="Tidemark, to Parquet",
        beside="pg_recvlogical, to nothing",
        sizes={
            "tiny": (2**20,),
            "small": (200, 2_000, 20_000, 200_000),
            "full": (200, 2_000, 20_000, 200_000, 2_000_000),
        },
        points=partial(growing, of_values),
    ),
    Curve(
        name="transaction",
        title="Drain of one transaction",
        x="changes, two thirds of them in the one transaction",
        y="seconds",
        ours="Tidemark, to Parquet",
        beside="pg_recvlogical, to nothing",
        sizes={"tiny": (30, 300), "small": (3_000, 30_000, 300_000), "full": (3_000, 30_000, 300_000, 3_000_000)},
        points=partial(growing, of_transactions),
    ),
)

if __name__ == "__main__":
    main(BENCHMARKS, CURVES, __doc__)
