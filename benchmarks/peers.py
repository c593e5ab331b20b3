"""Others that read PostgreSQL into files, on the same machine: `python -m benchmarks.peers`.

    peer-debezium  workload a from the slot into merged Delta tables, beside Debezium's embedded engine, which writes
                   the same WAL as lines of JSON
    peer-dlt       rows of a table in Delta by a backfill, beside dlt, which writes them as Parquet (its source for
                   replication is in no package)

Ours is the whole of a run, Spark's start included, up to tables that a reader finds merged; theirs ends with files.
Both peers are what a registry has, in folders of their own below .tidemark/peers; what cannot be had is said, and not
measured.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

import psycopg

from benchmarks import workloads
from benchmarks.backfill import READERS, TABLE, read
from benchmarks.pairs import Benchmark, Goal, Meter, Pairs, Setting, main
from benchmarks.pipeline import SERVER, Pipeline, Refused, pipeline_on
from sandbox.checkout import this_checkout
from sandbox.services.postgres import PostgresServer, running
from sandbox.setup.uv_settings import uv_environment
from tidemark.backfill.backfill_report import report
from tidemark.backfill.backfill_tables import BackfillRequest
from tidemark.backfill.planning import plan
from tidemark.spark_submit import jar_download

DLT: Final = ("dlt[filesystem,parquet,sql_database]==1.31.0", "psycopg2-binary==2.9.13")
DEBEZIUM: Final = tuple(
    f"io.debezium:debezium-{part}:3.3.1.Final" for part in ("api", "embedded", "connector-postgres")
)
PLAIN: Final = Path(__file__).with_name("plain")


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
            properties = folder / "engine.properties"
            properties.touch(0o600)
            properties.write_text("".join(f"{name}={value}\n" for name, value in engine(server).items()))
            arguments = [*command, str(PLAIN / "DebeziumToJson.java"), str(properties), str(changes)]
            yield meter.pair(number, pipeline.run, partial(run, [*arguments, str(folder / "changes.json")]))


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
    folder = this_checkout().made / "peers" / "debezium"
    if not (folder / "jars").is_dir():
        try:
            jar_download.resolve(DEBEZIUM, (), folder, os.environ)
        except Exception as failed:
            shutil.rmtree(folder, ignore_errors=True)
            raise Refused("Debezium's jars cannot be had") from failed
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    return [str(java), "--class-path", f"{folder / 'jars'}/*"]


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


def run(command: list[str], environment: dict[str, str] | None = None) -> None:
    """A program that has nothing of the checkout's in its environment."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "SPARK"))
    }
    process = subprocess.run(
        command, env={**kept, **(environment or {})}, stdin=subprocess.DEVNULL, capture_output=True, text=True
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
