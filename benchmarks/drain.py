"""The drain beside `pg_recvlogical`, on the same WAL: `python -m benchmarks.drain [--inserts N] [--repeat N]`.

Workload a: one table of 8 columns; N inserts, N/2 updates and N/20 deletes in transactions of some thousand
changes (N = 2,000,000 is the full size). Both read the whole of it over TCP from the embedded server, in turn,
each time from a fresh copy of the slot: `pg_recvlogical -f /dev/null` only receives, the drain also decodes,
writes typed Parquet, fsyncs and registers. Prints each time, the medians, rows per second, and the ratio (above
1: the drain is the faster one).
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

from sandbox.services.postgres import PostgresServer, running
from tidemark.capture import ownership
from tidemark.capture.drain import drain
from tidemark.config import Bounds, PipelineConfig, TableRule
from tidemark.ledger import belongings, leases, migrations
from tidemark.ledger.connection import open_ledger
from tidemark.run import Run

SLOT = "benchmark"
BLOCK = 10_000


def write_workload(connection: psycopg.Connection[Any], inserts: int) -> int:
    """Make the table, the publication and the slot, then the changes; returns how many changes there are."""
    connection.execute(
        "CREATE TABLE measurements (id bigint PRIMARY KEY, customer int, name text, price numeric(10,2), "
        "weight float8, created timestamptz, active bool, note varchar(40))"
    )
    connection.execute("CREATE PUBLICATION benchmark FOR TABLE measurements")
    connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
    for start in range(0, inserts, BLOCK):
        connection.execute(
            "INSERT INTO measurements SELECT i, i %% 5000, 'name of ' || i, (i %% 100000) / 100.0, i * 0.37, "
            "timestamptz '2024-01-02 03:04:05+00' + i * interval '1 millisecond', i %% 2 = 0, "
            "CASE WHEN i %% 10 > 0 THEN 'a note of some length' END FROM generate_series(%s::bigint, %s) i",
            (start, min(start + BLOCK, inserts) - 1),
        )
    updates, deletes = inserts // 2, inserts // 20
    for start in range(0, updates, BLOCK):
        connection.execute(
            "UPDATE measurements SET price = price + 1, note = 'changed' WHERE id BETWEEN %s AND %s",
            (start, min(start + BLOCK, updates) - 1),
        )
    connection.execute("DELETE FROM measurements WHERE id < %s", (deletes,))
    return inserts + updates + deletes


def copy_of_slot(connection: psycopg.Connection[Any], name: str) -> str:
    connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (SLOT, name))
    return name


def receive(server: PostgresServer, slot: str, end_lsn: str) -> float:
    """Seconds that pg_recvlogical needs to read up to `end_lsn`."""
    command = [
        str(server.binary("pg_recvlogical")),
        *(
            "-d",
            server.conninfo_for_programs(),
            "-S",
            slot,
            "--start",
            "--endpos",
            end_lsn,
            "--no-loop",
            "-f",
            "/dev/null",
        ),
        *("-o", "proto_version=1", "-o", "publication_names=benchmark", "-o", "messages=true"),
    ]
    started = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return time.perf_counter() - started


def drained(server: PostgresServer, conninfo: str, slot: str, folder: Path, batch_rows: int) -> tuple[float, int, int]:
    """Seconds, rows and batches of one drain into a ledger and a lake of its own."""
    ledger_name = f"ledger_{slot}"
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {ledger_name}".encode())
    ledger = server.conninfo(ledger_name)
    migrations.migrate(ledger)
    config = PipelineConfig(
        pipeline=slot,
        source_connection="source",
        slot=slot,
        publication="benchmark",
        manage_publication=True,
        tables=(TableRule("public.measurements"),),
        lake=str(folder / slot),
        ledger_connection="ledger",
        bounds=Bounds(batch_rows=batch_rows),
    )
    adopt(config, conninfo, ledger)
    started = time.perf_counter()
    result = drain(Run(config, source=conninfo, ledger=ledger, run_id="benchmark", holder="benchmark"))
    took = time.perf_counter() - started
    if not result.reached_target:
        raise RuntimeError("the drain ended before its heartbeat")
    return took, result.rows, len(result.batches)


def adopt(config: PipelineConfig, source: str, ledger: str) -> None:
    """The slot was made by hand: note it as the pipeline's own, as `preflight --adopt-slot` does."""
    with (
        leases.hold(ledger, config.pipeline, leases.SLOT, "benchmark") as lease,
        psycopg.connect(source) as at_source,
        open_ledger(ledger, config.pipeline) as book,
    ):
        belongings.note(book, lease, ownership.thing(at_source, "slot", config.slot), "adopted")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inserts", type=int, default=2_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--batch-rows", type=int, default=Bounds().batch_rows)
    parser.add_argument("--folder", type=Path, help="where server and lake lie (default: a temporary folder)")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder) as temporary,
        running(Path(temporary) / "postgres", 18, max_wal_size="8GB") as server,
    ):
        conninfo = server.conninfo()
        with psycopg.connect(conninfo, autocommit=True) as connection:
            rows = write_workload(connection, arguments.inserts)
            connection.execute("CHECKPOINT")
            end = connection.execute("SELECT pg_current_wal_lsn()::text, pg_current_wal_lsn() - '0/0'").fetchone()
            assert end is not None
            print(f"workload a: {rows:,} changes on {os.cpu_count()} cores")
            times: dict[str, list[float]] = {"pg_recvlogical": [], "drain": []}
            for number in range(arguments.repeat):
                took = receive(server, copy_of_slot(connection, f"received_{number}"), str(end[0]))
                times["pg_recvlogical"].append(took)
                print(f"  pg_recvlogical -f /dev/null   {took:6.2f} s", flush=True)
                slot = copy_of_slot(connection, f"drained_{number}")
                took, staged, batches = drained(server, conninfo, slot, Path(temporary), arguments.batch_rows)
                if staged != rows:
                    raise RuntimeError(f"{staged:,} changes were staged of {rows:,}")
                times["drain"].append(took)
                print(f"  drain to registered Parquet   {took:6.2f} s  ({batches} batches)", flush=True)
    received, staged_s = (statistics.median(times[name]) for name in ("pg_recvlogical", "drain"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"medians of {arguments.repeat}:")
    print(f"  pg_recvlogical  {received:6.2f} s  {rows / received:10,.0f} rows/s")
    print(f"  drain           {staged_s:6.2f} s  {rows / staged_s:10,.0f} rows/s  (peak memory {peak} MB)")
    print(f"  ratio           {received / staged_s:6.2f}")


if __name__ == "__main__":
    main()
