"""What grows with a pipeline besides its capture's runs (`benchmarks.growth`): `python -m benchmarks.large_pipelines`.

    rules        a preflight of tables that the file names one by one, one relation in ten; beside it a preflight of as
                 many tables of a database that has no others
    chunks       what the reading of a hundred small chunks waits for the ledger, of a backfill that has so many
                 already; beside it the same of one that has none
    lost-ledger  so many batches of ten tables each are registered again from staging

Chunks and batches of the past are written by hand, as `benchmarks.growth` writes its own.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
from msgspec.structs import replace

from benchmarks.growth import PIPELINE, AgeingPipeline, StageMeter, watched
from benchmarks.pairs import Benchmark, Meter, Pair, Pairs, Setting, Taken, in_turns, main
from benchmarks.pipeline import Pipeline, Refused, new_database, pipeline_on
from sandbox.services.postgres import PostgresServer, running
from tidemark.backfill.backfill_tables import BackfillRequest
from tidemark.backfill.planning import plan
from tidemark.backfill.range_reading import read_chunks
from tidemark.capture.continuity.recovery import list_staging, register_again
from tidemark.capture.drain import drain
from tidemark.capture.preflight.preflight_report import preflight
from tidemark.config import TableRule
from tidemark.formats import layout
from tidemark.formats.manifest import BatchManifest, StagedFile
from tidemark.ledger import leases, migrations
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.leases import SLOT
from tidemark.ledger.staged import batches, generations
from tidemark.lsn import Lsn
from tidemark.staging.batch_chain import StagedBatch
from tidemark.storage.store import Store

# What is measured is Tidemark's and PostgreSQL's work, not the disk's.
SERVER: Final = {"max_wal_size": "8GB", "shared_buffers": "512MB", "fsync": "off", "max_locks_per_transaction": "1024"}

NAMED: Final = 10  # one relation in so many is captured
CHUNK_ROWS: Final = 10  # of the first one; it grows to eight times as many
ROWS: Final = 100 * 8 * CHUNK_ROWS
TABLES: Final = 10
BATCH_BYTES: Final = 64


# --- rules ------------------------------------------------------------------------------------------------------------


def rules(setting: Setting) -> Pairs:
    with running(setting.folder / "postgres", 18, **SERVER) as server:
        named = max(1, setting.size // NAMED)
        among = {
            case: naming(server, case, setting.folder, named, of)
            for case, of in (("few", named), ("many", setting.size))
        }
        for number in range(setting.rounds):
            yield in_turns(number, partial(looked_at, among["many"]), partial(looked_at, among["few"]))


def naming(server: PostgresServer, case: str, folder: Path, named: int, relations: int) -> Pipeline:
    """A pipeline that names the first tables of its database, behind its first preflight."""
    tables = tuple(TableRule(f"public.t{number:06}") for number in range(named))
    pipeline = pipeline_on(server, case, folder / case, tables=tables)
    with psycopg.connect(pipeline.source, autocommit=True) as connection:
        for number in range(relations):
            connection.execute(f"CREATE TABLE t{number:06} (id bigint PRIMARY KEY, name text)".encode())
        connection.execute("VACUUM ANALYZE")
    looked_at(pipeline)
    return pipeline


def looked_at(pipeline: Pipeline) -> Taken:
    return Meter().of(lambda: preflight(pipeline.task("preflight")).raise_for_errors())


# --- chunks -----------------------------------------------------------------------------------------------------------


def chunks(setting: Setting) -> Pairs:
    with running(setting.folder / "postgres", 18, **SERVER) as server:
        pipeline = pipeline_on(server, "source", setting.folder / "lake")
        with psycopg.connect(pipeline.source, autocommit=True) as connection:
            connection.execute("CREATE TABLE item (id int PRIMARY KEY, note text)")
            connection.execute("INSERT INTO item SELECT i, 'a note' FROM generate_series(1, %s) i", (ROWS,))
            connection.execute("VACUUM ANALYZE item")
        pipeline.begin()
        for number in range(setting.rounds):
            yield in_turns(
                number, partial(hundred_chunks, pipeline, setting.size), partial(hundred_chunks, pipeline, 0)
            )


def hundred_chunks(pipeline: Pipeline, before: int) -> Taken:
    """What their reader waits for statements in the ledger, of a new backfill with so many chunks before these."""
    pipeline.runs += 1
    wanted = BackfillRequest(tables=("public.item",), chunk_rows=CHUNK_ROWS, readers=1, replace=True)
    plan(pipeline.task("plan"), request=wanted)
    with psycopg.connect(pipeline.ledger, autocommit=True) as ledger:
        for statement in Path(__file__).with_suffix(".sql").read_text().split(";\n\n"):
            ledger.execute(statement.encode(), {"number": before})
        ledger.execute("VACUUM ANALYZE")
    meter = StageMeter()
    with watched(meter), meter.stage("read"):
        result = read_chunks(pipeline.task("read_chunks/0"))
    if result.rows != ROWS:
        raise Refused(f"{result.rows} of {ROWS} rows were read")
    return Taken(meter.costs["read"].ledger_s)


# --- lost -------------------------------------------------------------------------------------------------------------


def lost(setting: Setting) -> Pairs:
    with running(setting.folder / "postgres", 18, **SERVER) as server:
        source, ledger = (new_database(server, name) for name in ("source", "ledger"))
        pipeline = AgeingPipeline(source, ledger, setting.folder / "lake", TABLES)
        pipeline.change()
        if not drain(pipeline.task("drain")).reached_target:
            raise Refused("the drain ended before its heartbeat")
        staged = go_on(pipeline, setting.size - 1)
        for _ in range(setting.rounds):
            with psycopg.connect(ledger, autocommit=True) as book:
                book.execute("DROP SCHEMA tidemark CASCADE")
            migrations.migrate(ledger)
            with multiprocessing.get_context("spawn").Pool(1) as alone:
                registered, taken, peak_mb = alone.apply(registered_again, (pipeline.lake, ledger))
            if registered != staged:
                raise Refused(f"{registered} of {staged} batches were registered again")
            yield Pair(taken, facts={"batches_per_s": staged / taken.seconds, "peak_mb": peak_mb})


def go_on(pipeline: AgeingPipeline, number: int) -> int:
    """Put so many batches behind the last one that is staged, each of copies of its files; how many there are."""
    store = Store(pipeline.config.lake)
    with open_ledger(pipeline.ledger, pipeline.config.pipeline) as book:
        staged = generations.required(book).staged_lsn
        manifests = [batch.manifest for batch in batches.after(book, generations.required(book).number, Lsn(0))]
    last = BatchManifest.from_json(store.read(manifests[-1]).decode())
    old = os.path.dirname(manifests[-1])
    for place in range(number):
        start = Lsn(int(staged) + place * BATCH_BYTES)
        new = layout.batch_folder(pipeline.config.pipeline, last.generation, start, f"again-{place}")

        def moved(file: StagedFile, new: str = new) -> StagedFile:
            path = new + file.path.removeprefix(old)
            (pipeline.lake / path).parent.mkdir(parents=True, exist_ok=True)
            os.link(pipeline.lake / file.path, pipeline.lake / path)
            return replace(file, path=path)

        tables = tuple(replace(t, files=tuple(map(moved, t.files))) for t in last.tables)
        transactions = None if last.transactions is None else moved(last.transactions)
        manifest = replace(
            last,
            start_lsn=start,
            end_lsn=Lsn(int(start) + BATCH_BYTES),
            attempt=f"again-{place}",
            tables=tables,
            transactions=transactions,
        )
        store.write_atomic(layout.manifest_file(new), manifest.to_json().encode())
    return len(manifests) + number


def registered_again(lake: Path, ledger: str) -> tuple[int, Taken, int]:
    """The batches that the ledger has behind it, what that took, and the most memory of this process in MB."""
    found: list[StagedBatch] = []

    def again() -> None:
        with leases.hold(ledger, PIPELINE, SLOT, "drain") as lease, open_ledger(ledger, PIPELINE) as book:
            found.extend(register_again(book, list_staging(book, Store(str(lake))), lease, lambda *_: False))

    taken = Meter().of(again)
    return len(found), taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


BENCHMARKS = (
    Benchmark(
        name="rules",
        what="a preflight of tables that are named one by one, a tenth of all relations",
        beside="the same of a database with these tables alone",
        goals=(),
        unit="relations",
        sizes={"tiny": 20, "small": 1_000, "full": 5_000},
        pairs=rules,
    ),
    Benchmark(
        name="chunks",
        what="what the reading of 100 chunks waits for the ledger, of a backfill that has so many already",
        beside="of one that has none",
        goals=(),
        unit="chunks",
        sizes={"tiny": 10, "small": 2_000, "full": 20_000},
        pairs=chunks,
    ),
    Benchmark(
        name="lost-ledger",
        what="batches of ten tables, registered again from staging behind a lost ledger",
        beside="",
        goals=(),
        unit="batches",
        sizes={"tiny": 10, "small": 1_000, "full": 5_000},
        pairs=lost,
    ),
)

if __name__ == "__main__":
    main(BENCHMARKS, (), __doc__)
