"""Others that read PostgreSQL into files, on the same machine: `python -m benchmarks.peers`.

    peer-debezium  workload a from the slot into merged Delta tables, beside Debezium's embedded engine, which writes
                   the same WAL as lines of JSON
    peer-debezium-busy
                   20 tables that get 200 changes a second, as in `latency-busy-following`: from a commit until the
                   engine's lines of JSON can be read in its file; no Delta table has them, and ours is not beside it
    peer-dlt       rows of a table in Delta by a backfill, beside dlt, which writes them as Parquet (its source for
                   replication is in no package)

Ours is the whole of a run, Spark's start included, up to tables that a reader finds merged; theirs ends with files.
Both peers are what a registry has, in folders of their own below .tidemark/peers; what cannot be had is said, and not
measured.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

import psycopg

from benchmarks import workloads
from benchmarks.backfill import READERS, TABLE, read
from benchmarks.latency import FEW, REST_S, WARM_S, Processes, be_busy, change, create_many
from benchmarks.pairs import Benchmark, Goal, Meter, Pair, Pairs, Setting, Taken, main
from benchmarks.pipeline import SERVER, Pipeline, Refused, new_database, pipeline_on
from sandbox.checkout import this_checkout
from sandbox.services.postgres import PostgresServer, running
from sandbox.setup.uv_settings import uv_environment
from tidemark.backfill.backfill_report import report
from tidemark.backfill.backfill_tables import BackfillRequest
from tidemark.backfill.planning import plan
from tidemark.lsn import Lsn
from tidemark.spark_submit import jar_download
from tidemark.wait_log import Wait

DLT: Final = ("dlt[filesystem,parquet,sql_database]==1.31.0", "psycopg2-binary==2.9.13")
DEBEZIUM_VERSION: Final = "3.6.1"
DEBEZIUM: Final = tuple(
    f"io.debezium:debezium-{part}:{DEBEZIUM_VERSION}.Final" for part in ("api", "embedded", "connector-postgres")
)
PLAIN: Final = Path(__file__).with_name("plain")
LINES: Final = "changes.json"
FOR_EVER: Final = 10**15  # changes
WRITTEN_S: Final = 120
LOOK_S: Final = 0.005


def of_debezium(setting: Setting) -> Pairs:
    """Both read the same WAL, each by a slot of its own; ours merges it, in tables that are made anew each round."""
    command = debezium()
    meter = Meter()
    for number in range(setting.rounds):
        folder = setting.folder / str(number)
        with running(folder / "postgres", 18, **SERVER) as server:
            pipeline = pipeline_on(server, "source", folder / "lake")
            with psycopg.connect(pipeline.source, autocommit=True) as connection:
                workloads.create(connection)
                pipeline.begin()
                connection.execute("SELECT pg_create_logical_replication_slot('peer', 'pgoutput')")
                changes = workloads.mixed(connection, setting.size)
            arguments = engine_arguments(command, folder, server, changes)
            yield meter.pair(number, pipeline.run, partial(run, arguments))


def engine_arguments(command: list[str], folder: Path, server: PostgresServer, changes: int) -> list[str]:
    """Java, the script, and its arguments: it ends after so many changes."""
    properties = folder / "engine.properties"
    properties.touch(0o600)
    properties.write_text("".join(f"{name}={value}\n" for name, value in engine(server).items()))
    return [*command, str(PLAIN / "DebeziumToJson.java"), str(properties), str(changes), str(folder / LINES)]


def engine(server: PostgresServer) -> dict[str, object]:
    """The options of the documentation, with larger batches, which are faster."""
    return {
        "name": "peer",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "topic.prefix": "peer",
        "database.hostname": "127.0.0.1",
        "database.port": server.port,
        "database.user": "postgres",
        "database.password": server.password,
        "database.dbname": "source",
        "plugin.name": "pgoutput",
        "slot.name": "peer",
        "publication.name": "bench",
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "no_data",
        "tombstones.on.delete": "false",
        "converter.schemas.enable": "false",
        "max.batch.size": 16384,
        "max.queue.size": 65536,
    }


def debezium() -> list[str]:
    """The Java command with the engine's jars, fetched once by Spark's Ivy."""
    folder = this_checkout().made / "peers" / f"debezium-{DEBEZIUM_VERSION}"
    if not (folder / "jars").is_dir():
        # Ivy takes a module of the machine's Maven cache that has no more than its description for one without a jar.
        flags = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Duser.home={folder}"
        try:
            jar_download.resolve(DEBEZIUM, (), folder, {**os.environ, "SPARK_SUBMIT_OPTS": flags})
        except Exception as failed:
            shutil.rmtree(folder, ignore_errors=True)
            raise Refused("Debezium's jars cannot be had") from failed
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    return [str(java), "--class-path", f"{folder / 'jars'}/*"]


def debezium_at_work(setting: Setting) -> Pairs:
    """One pair: the median of all commits of a source that is busy for `size` seconds, and what the engine took."""
    command = debezium()
    with running(setting.folder / "postgres", 18, **SERVER) as server:
        source = new_database(server, "source")
        with psycopg.connect(source, autocommit=True) as connection:
            create_many(connection, FEW.tables)
            connection.execute("CREATE PUBLICATION bench FOR ALL TABLES")
            connection.execute("SELECT pg_create_logical_replication_slot('peer', 'pgoutput')")
            arguments = engine_arguments(command, setting.folder, server, FOR_EVER)
            with written_lines(arguments, setting.folder) as lines:
                roots = [lines.process.pid]
                for table in range(FEW.tables):
                    change(connection, table, FEW)
                lines.taken = FEW.tables * FEW.inserted  # a table's first commit has nothing to update
                lines.latencies_s(be_busy(connection, FEW, WARM_S))
                with Processes(roots) as in_use:
                    committed = be_busy(connection, FEW, setting.size)
                    taken, memory = in_use.taken_s(), in_use.memory_mb()
                took = sorted(lines.latencies_s(committed))
                time.sleep(REST_S / 2)
                with Processes(roots) as at_rest:
                    time.sleep(REST_S)
                    rest, rest_memory = at_rest.taken_s(), at_rest.memory_mb()
    facts = {
        "p99_s": took[len(took) * 99 // 100],
        "most_s": took[-1],
        "cpu_cores": sum(taken.values()) / setting.size,
        "mb": sum(memory.values()),
        "rest_cpu_cores": sum(rest.values()) / REST_S,
        "rest_mb": sum(rest_memory.values()),
    }
    yield Pair(Taken(statistics.median(took)), facts=facts)


@dataclass
class WrittenLines:
    """Debezium's engine, and the lines that it has written so far.

    The file is read again and again. `found` has for each line when it was there, and the number of its transaction.
    """

    process: subprocess.Popen[bytes]
    file: Path
    found: list[tuple[float, int]] = field(default_factory=list)
    taken: int = 0  # of them, by commits before
    ended: threading.Event = field(default_factory=threading.Event)

    def keep_reading(self) -> None:
        while not self.file.exists() and not self.ended.wait(LOOK_S):
            pass
        if not self.file.exists():
            return
        rest = b""
        with self.file.open("rb") as opened:
            while not self.ended.wait(LOOK_S):
                read = opened.read()
                at = time.time()
                *lines, rest = (rest + read).split(b"\n")
                self.found += [(at, json.loads(line)["source"]["txId"]) for line in lines]

    def wait_for(self, number: int) -> None:
        waiting = Wait(WRITTEN_S, every_s=0.1)
        while len(self.found) < number:
            if self.process.poll() is not None or not waiting.pause(lambda: "the engine's lines"):
                raise Refused(f"the engine wrote {len(self.found):,} lines of {number:,}")

    def latencies_s(self, committed: Sequence[tuple[int, float, Lsn]]) -> list[float]:
        """Of the commits that come next, from each commit until its last line was there; waits for them."""
        first, of_each = self.taken, FEW.inserted + FEW.updated
        self.wait_for(first + of_each * len(committed))
        self.taken += of_each * len(committed)
        took = []
        for number, (_, at, _) in enumerate(committed):
            lines = self.found[first + number * of_each :][:of_each]
            if len({transaction for _, transaction in lines}) != 1:
                raise Refused("the engine's lines are not those of one transaction after the other")
            took.append(lines[-1][0] - at)
        return took


@contextmanager
def written_lines(arguments: list[str], folder: Path) -> Iterator[WrittenLines]:
    """The engine at work, until the block ends."""
    with (folder / "engine.log").open("wb") as log:
        process = subprocess.Popen(arguments, env=own_environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        lines = WrittenLines(process, folder / LINES)
        thread = threading.Thread(target=lines.keep_reading)
        thread.start()
        try:
            yield lines
        finally:
            lines.ended.set()
            thread.join()
            process.terminate()
            process.wait()


def of_dlt(setting: Setting) -> Pairs:
    """The same rows; ours in a lake and a ledger of its own each round."""
    python = dlt()
    meter = Meter()
    with running(setting.folder / "postgres", 18, **SERVER) as server:
        for number in range(setting.rounds):
            folder = setting.folder / str(number)
            pipeline = pipeline_on(server, f"source{number}", folder / "lake")
            with psycopg.connect(pipeline.source, autocommit=True) as connection:
                workloads.fill(connection, setting.size)
            pipeline.begin()
            credentials = (
                f"postgresql+psycopg2://postgres:{quote(server.password)}@127.0.0.1:{server.port}/source{number}"
            )
            environment = {"SOURCES__SQL_DATABASE__CREDENTIALS": credentials, "RUNTIME__DLTHUB_TELEMETRY": "false"}
            script = [str(python), str(PLAIN / "dlt_to_parquet.py"), str(folder / "dlt")]
            yield meter.pair(number, partial(backfilled, pipeline), partial(run, script, environment))
            with psycopg.connect(pipeline.source, autocommit=True) as connection:
                connection.execute("SELECT pg_drop_replication_slot(%s)", (pipeline.config.slot,))


def backfilled(pipeline: Pipeline) -> None:
    backfill = replace(pipeline, dag="backfill")
    plan(backfill.task("plan"), request=BackfillRequest(tables=(TABLE,), readers=READERS))
    read(backfill)
    pipeline.run()
    report(backfill.task("report"))


def dlt() -> Path:
    """The Python of an environment that has dlt, made once."""
    folder = this_checkout().made / "peers" / "dlt"
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        uv, own = str(this_checkout().venv / "bin" / "uv"), this_checkout().python
        try:
            run([uv, "venv", "--quiet", "--clear", "--python", str(own), str(folder)])
            run([uv, "pip", "install", "--quiet", "--python", str(python), *DLT], uv_environment(own))
        except Refused as failed:
            raise Refused("dlt cannot be had") from failed
        (folder / "made").touch()
    return python


def own_environment() -> dict[str, str]:
    """The machine's, less what is the checkout's."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "SPARK"))
    }


def run(command: list[str], environment: dict[str, str] | None = None) -> None:
    """A program that has nothing of the checkout's in its environment."""
    process = subprocess.run(
        command, env=own_environment() | (environment or {}), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if process.returncode:
        raise Refused(f"{Path(command[0]).name}: {process.stderr[-2000:] or process.stdout[-2000:]}")


BENCHMARKS = (
    Benchmark(
        name="peer-debezium",
        what="changes of a new table, from the slot into merged Delta tables",
        beside="Debezium's embedded engine, into lines of JSON",
        goals=(Goal("ratio", 1),),
        unit="changes",
        sizes={"tiny": 310, "small": 310_000, "full": 1_550_000},
        pairs=of_debezium,
    ),
    Benchmark(
        name="peer-debezium-busy",
        what="200 changes a second in 20 tables, commit to a line of JSON by Debezium, nothing in Delta, median",
        beside="",
        goals=(),
        unit="seconds",
        sizes={"tiny": 20, "small": 180, "full": 900},
        pairs=debezium_at_work,
    ),
    Benchmark(
        name="peer-dlt",
        what="rows of a backfill, merged in Delta",
        beside="dlt, into Parquet",
        goals=(Goal("ratio", 1),),
        unit="rows",
        sizes={"tiny": 1_000, "small": 500_000, "full": 5_000_000},
        pairs=of_dlt,
    ),
)

if __name__ == "__main__":
    main(BENCHMARKS, about=__doc__)
