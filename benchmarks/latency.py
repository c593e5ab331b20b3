"""From a commit at the source to a row that can be read in Delta, under Airflow, both ways: `make bench-latency`.

A real Airflow (scheduler, DAG processor, triggerer, API server) captures one table on an otherwise idle machine: by a
run every minute, or by runs of an hour that follow the source. Commits of one row come at moments that have nothing to
do with the minute. A row can be read
from the moment at which the log of its Delta table names the version that has it, so its latency is the time of that
file less the time of the commit. Airflow and server are started for it and stopped behind it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from benchmarks import workloads
from benchmarks.pairs import Benchmark, Goal, Pair, Pairs, Setting, Taken, main
from benchmarks.pipeline import Refused
from sandbox.checkout import this_checkout
from sandbox.services import processes
from sandbox.services.airflow_api import AirflowApi
from sandbox.services.postgres import PostgresServer
from sandbox.steps import Steps
from tidemark.lsn import Lsn
from tidemark.wait_log import Wait

DATABASES: Final = ("latency", "latency_ledger", "airflow")
BETWEEN_S: Final = 17.3  # two commits: the minute is met at every point of it
WAIT_S: Final = 300

FILE: Final = """\
source: {{connection: latency_source, slot: latency, publication: latency}}
tables: [public.*]
lake: {lake}
ledger: {{connection: latency_ledger}}
spark: {{connection: spark_default}}
{way}
maintenance: {{schedule: null}}
"""


@dataclass
class Services(processes.Services):
    """Server, Airflow's home and pipelines in a folder of their own; nothing is kept for `make up` to find."""

    folder: Path = Path()

    def write(self) -> None:
        pass

    @property
    def server(self) -> PostgresServer:
        return PostgresServer(self.folder / "postgres", port=self.postgres_port, password=self.postgres_password)

    @property
    def pipelines(self) -> Path:
        return self.folder / "pipelines"

    def environment(self) -> dict[str, str]:
        connection = {"conn_type": "postgres", "host": "127.0.0.1", "port": self.postgres_port, "login": "postgres"}
        connection["password"] = self.postgres_password
        source, ledger = ({**connection, "schema": database} for database in DATABASES[:2])
        home = self.folder / "airflow"
        return super().environment() | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
            "TIDEMARK_PIPELINES": str(self.pipelines),
            "AIRFLOW_CONN_LATENCY_SOURCE": json.dumps(source),
            "AIRFLOW_CONN_LATENCY_LEDGER": json.dumps(ledger),
        }


def pairs_of_runs(setting: Setting) -> Pairs:
    """A run every minute."""
    return pairs(setting, 'schedule: "* * * * *"')


def pairs_that_follow(setting: Setting) -> Pairs:
    """A run follows the source until the full hour, when the next one takes over."""
    return pairs(setting, 'schedule: "0 * * * *"\nfollow: {every: 2s}', starts_it=True)


def pairs(setting: Setting, way: str, *, starts_it: bool = False) -> Pairs:
    """One pair: the median of all commits. `starts_it`: the first run comes by hand."""
    lake = setting.folder / "lake"
    with at_work(setting.folder, lake, way, starts_it=starts_it) as source:
        log = lake / "latency" / "current" / "public" / "measurements" / "_delta_log"
        with psycopg.connect(source, autocommit=True) as connection:
            wait_for_slot(connection)
            applied_at(log, commit(connection, -1)[1])  # the first rows make the tables
            committed = []
            for number in range(setting.size):
                time.sleep(BETWEEN_S)
                committed.append(commit(connection, number))
        took = sorted(applied_at(log, lsn) - at for at, lsn in committed)
    facts = {"least_s": took[0], "most_s": took[-1]}
    yield Pair(Taken(statistics.median(took)), facts=facts)


def wait_for_slot(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """The first run makes it; what is committed before is for a backfill."""
    waiting = Wait(WAIT_S, every_s=0.5)
    while connection.execute("SELECT FROM pg_replication_slots WHERE slot_name = 'latency'").fetchone() is None:
        if not waiting.pause(lambda: "the first run to make the slot"):
            raise Refused(f"no run made the slot within {WAIT_S} s")


def commit(connection: psycopg.Connection[tuple[object, ...]], number: int) -> tuple[float, Lsn]:
    """One row; when, and below which LSN its commit lies."""
    workloads.insert(connection, number, number + 1)
    at = time.time()
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return at, Lsn.parse(str(row[0]))


def applied_at(log: Path, lsn: Lsn) -> float:
    """When the version was written with which the table had everything below the LSN; waits for it."""
    waiting = Wait(WAIT_S)
    while waiting.pause(lambda: "the rows in Delta"):
        for version in sorted(log.glob("*.json")):
            for line in version.read_text().splitlines():
                action = json.loads(line)
                if int(action.get("txn", {}).get("version", -1)) >= int(lsn):
                    return version.stat().st_mtime
    raise Refused(f"a commit was not in Delta after {WAIT_S} s")


@contextmanager
def at_work(folder: Path, lake: Path, way: str, *, starts_it: bool) -> Iterator[str]:
    """Server and Airflow with the pipeline, its DAG known and not paused; yields the source."""
    services = Services(this_checkout(), folder=folder)
    services.pipelines.mkdir(parents=True)
    (services.pipelines / "latency.yaml").write_text(FILE.format(lake=lake, way=way))
    server = services.server
    server.remove()
    server.start()
    try:
        services.postgres_port = server.port
        for database in DATABASES:
            processes.create_database(services, database)
        source = server.conninfo(DATABASES[0])
        with psycopg.connect(source, autocommit=True) as connection:
            workloads.create(connection)
        processes.start_airflow(services, Steps())
        api = AirflowApi(services.ui, processes.UI_USER, services.ui_password)
        waiting = Wait(WAIT_S, every_s=1)
        while not api.knows("latency_capture"):
            if not waiting.pause(lambda: "Airflow to know the DAG"):
                raise Refused("Airflow does not know the DAG")
        if starts_it:
            api.trigger("latency_capture")
        yield source
    finally:
        processes.stop_airflow(services)
        server.remove()


BENCHMARKS = (
    Benchmark(
        name="latency",
        what="commit at the source to readable in Delta, one-minute schedule, median",
        beside="",
        goals=(Goal("seconds", 50),),
        unit="commits",
        sizes={"tiny": 1, "small": 10, "full": 30},
        pairs=pairs_of_runs,
    ),
    Benchmark(
        name="latency-following",
        what="commit at the source to readable in Delta, a run that follows with every: 2s, median",
        beside="",
        goals=(Goal("seconds", 4),),
        unit="commits",
        sizes={"tiny": 1, "small": 10, "full": 30},
        pairs=pairs_that_follow,
    ),
)

if __name__ == "__main__":
    main(BENCHMARKS, about=__doc__)
