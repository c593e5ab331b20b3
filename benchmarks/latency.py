"""From a commit at the source to a row that can be read in Delta, under Airflow, both ways: `make bench-latency`.

A real Airflow (scheduler, DAG processor, triggerer, API server) captures one table on an otherwise idle machine: by a
run every minute, or by runs of an hour that follow the source. Commits of one row come at moments that have nothing to
do with the minute. A row can be read
from the moment at which the log of its Delta table names the version that has it, so its latency is the time of that
file less the time of the commit. Airflow and server are started for it and stopped behind it.

The busy lines have 20 tables and 200 changes a second, in commits of ten, or 100 tables and 5,000 changes, in commits
of fifty. They say besides what all of Airflow's processes, drivers among them, took of CPU, and what they take when the
source rests.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
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
WARM_S: Final = 30  # of a busy source before what counts
REST_S: Final = 60

BY_MINUTES: Final = 'schedule: "* * * * *"'
FOLLOWING: Final = 'schedule: "0 * * * *"\nfollow: {every: 2s}'

FILE: Final = """\
source: {{connection: latency_source, slot: latency, publication: latency}}
tables: [public.*]
lake: {lake}
ledger: {{connection: latency_ledger}}
spark: {{connection: spark_default}}
{way}
maintenance: {{schedule: {maintenance}}}
"""


@dataclass(frozen=True)
class Load:
    """So many commits a second, of so many tables in turn; each inserts rows and updates those before them."""

    tables: int
    commits_s: int
    inserted: int
    updated: int


FEW: Final = Load(tables=20, commits_s=20, inserted=7, updated=3)
MANY: Final = Load(tables=100, commits_s=100, inserted=35, updated=15)


@dataclass
class Services(processes.Services):
    """Server, Airflow's home and pipelines in a folder of their own; nothing is kept for `make up` to find."""

    folder: Path = Path()
    apart: bool = False  # source and ledger are servers of their own, so that Airflow outlives each of them

    def __post_init__(self) -> None:
        names = DATABASES[:2] if self.apart else ()
        self.others = {n: PostgresServer(self.folder / n, password=self.postgres_password) for n in names}

    def write(self) -> None:
        pass

    @property
    def server(self) -> PostgresServer:
        return PostgresServer(self.folder / "postgres", port=self.postgres_port, password=self.postgres_password)

    def server_of(self, database: str) -> PostgresServer:
        return self.others.get(database, self.server)

    def start_servers(self) -> None:
        for server in (self.server, *self.others.values()):
            server.remove()
            server.start()
            self.postgres_port = self.postgres_port or server.port
        for database in DATABASES:
            processes.create_database(self.server_of(database), database)

    def remove_servers(self) -> None:
        for server in (self.server, *self.others.values()):
            server.remove()

    @property
    def pipelines(self) -> Path:
        return self.folder / "pipelines"

    def environment(self) -> dict[str, str]:
        connection = {"conn_type": "postgres", "host": "127.0.0.1", "login": "postgres"}
        connection["password"] = self.postgres_password
        source, ledger = (
            {**connection, "port": self.server_of(database).port, "schema": database} for database in DATABASES[:2]
        )
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
    return pairs(setting, BY_MINUTES)


def pairs_that_follow(setting: Setting) -> Pairs:
    """A run follows the source until the full hour, when the next one takes over."""
    return pairs(setting, FOLLOWING, starts_it=True)


def pairs(setting: Setting, way: str, *, starts_it: bool = False) -> Pairs:
    """One pair: the median of all commits. `starts_it`: the first run comes by hand."""
    lake = setting.folder / "lake"
    with at_work(setting.folder, lake, way, starts_it=starts_it) as (source, _):
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


def busy_pairs(setting: Setting, load: Load, way: str, *, starts_it: bool) -> Pairs:
    """One pair: the median of all commits of a source that is busy for `size` seconds, and what else it took."""
    lake = setting.folder / "lake"
    logs = logs_of(lake, load)
    with (
        at_work(setting.folder, lake, way, starts_it=starts_it, create=partial(create_many, tables=load.tables)) as (
            source,
            services,
        ),
        psycopg.connect(source, autocommit=True) as connection,
    ):
        write_first_rows(connection, logs, load)
        be_busy(connection, load, WARM_S)
        roots = [process.pid for process in services.processes]
        with Processes(roots) as in_use:
            committed = be_busy(connection, load, setting.size)
            taken = in_use.taken_s()
        took = sorted(at - when for when, at in zip(*applied(logs, committed), strict=True))
        time.sleep(REST_S / 2)
        with Processes(roots) as at_rest:
            time.sleep(REST_S)
            rest, memory = at_rest.taken_s(), at_rest.memory_mb()
    facts = {
        "p99_s": took[len(took) * 99 // 100],
        "most_s": took[-1],
        "cpu_cores": sum(taken.values()) / setting.size,
        "rest_cpu_cores": sum(rest.values()) / REST_S,
    }
    facts |= {f"{kind}_cpu_cores": seconds / setting.size for kind, seconds in taken.items()}
    facts |= {f"rest_{kind}_cpu_cores": seconds / REST_S for kind, seconds in rest.items()}
    facts |= {f"rest_{kind}_mb": mb for kind, mb in memory.items()}
    yield Pair(Taken(statistics.median(took)), facts=facts)


def logs_of(lake: Path, load: Load) -> list[Path]:
    return [lake / "latency" / "current" / "public" / f"m{number}" / "_delta_log" for number in range(load.tables)]


def create_many(connection: psycopg.Connection[Any], tables: int) -> None:
    for number in range(tables):
        connection.execute(f"CREATE TABLE m{number} ({workloads.COLUMNS})".encode())


def write_first_rows(connection: psycopg.Connection[Any], logs: Sequence[Path], load: Load) -> None:
    """Write to each table once the first run captures them, and wait until all have their Delta tables."""
    wait_for_slot(connection)
    first = [change(connection, number, load) for number in range(load.tables)]
    for log, (_, lsn) in zip(logs, first, strict=True):
        applied_at(log, lsn)


def be_busy(
    connection: psycopg.Connection[tuple[object, ...]], load: Load, seconds: float
) -> list[tuple[int, float, Lsn]]:
    """The commits of so many seconds: table, when, and below which LSN."""
    began, committed = time.monotonic(), []
    for number in range(round(seconds * load.commits_s)):
        time.sleep(max(0.0, began + number / load.commits_s - time.monotonic()))
        table = number % load.tables
        committed.append((table, *change(connection, table, load)))
    return committed


def change(connection: psycopg.Connection[tuple[object, ...]], table: int, load: Load) -> tuple[float, Lsn]:
    """New rows and changed ones in one transaction; when, and below which LSN its commit lies."""
    with connection.transaction():
        last = number_of(connection.execute(f"SELECT coalesce(max(id), 0) FROM m{table}".encode()).fetchone())
        connection.execute(f"INSERT INTO m{table} {workloads.ROWS}".encode(), (last + 1, last + load.inserted))
        changed = f"id > {last - load.updated} AND id <= {last}"
        connection.execute(f"UPDATE m{table} SET price = price + 1 WHERE {changed}".encode())
    at = time.time()
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return at, Lsn.parse(str(row[0]))


def number_of(row: tuple[object, ...] | None) -> int:
    assert row is not None
    return int(str(row[0]))


def applied(logs: list[Path], committed: Iterable[tuple[int, float, Lsn]]) -> tuple[list[float], list[float]]:
    """When each was committed, and when it could be read."""
    commits, moments = list(committed), []
    newest = {table: lsn for table, _, lsn in commits}
    for table, lsn in newest.items():
        applied_at(logs[table], lsn)
    versions = {table: list(versions_of(logs[table])) for table in newest}
    for table, _, lsn in commits:
        moments.append(next(at for at, end in versions[table] if end >= int(lsn)))
    return [at for _, at, _ in commits], moments


def versions_of(log: Path) -> Iterator[tuple[float, int]]:
    """When each version was written, and up to which LSN the table has everything with it."""
    for version in sorted(log.glob("*.json")):
        ends = [json.loads(line).get("txn", {}).get("version", -1) for line in version.read_text().splitlines()]
        yield version.stat().st_mtime, max(map(int, ends))


@dataclass
class Processes:
    """What the processes of `roots` and their children take of CPU while the block runs; those that live for less than
    a second may be missed. Of Airflow's processes `java` are the drivers, `tasks` what runs a task, `airflow` the
    rest."""

    roots: Sequence[int]
    seen: dict[tuple[int, float], tuple[str, float, float]] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Processes:
        self.look(begins=True)
        self.thread = threading.Thread(target=self.keep_looking, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def keep_looking(self) -> None:
        while not self.ended.wait(0.5):
            self.look()

    def all_of_them(self) -> Iterator[psutil.Process]:
        for root in self.roots:
            with suppress(psutil.Error):
                process = psutil.Process(root)
                yield process
                yield from process.children(recursive=True)

    def look(self, *, begins: bool = False) -> None:
        for process in self.all_of_them():
            with suppress(psutil.Error):
                times = process.cpu_times()
                now, at = times.user + times.system, (process.pid, process.create_time())
                kind, first, _ = self.seen.get(at, (kind_of(process), now if begins else 0.0, 0.0))
                self.seen[at] = (kind, first, now)

    def taken_s(self) -> dict[str, float]:
        self.look()
        taken = dict.fromkeys(("airflow", "tasks", "java"), 0.0)
        for kind, first, last in self.seen.values():
            taken[kind] += last - first
        return taken

    def memory_mb(self) -> dict[str, float]:
        """What they have for themselves, and their share of what they have in common."""
        memory = dict.fromkeys(("airflow", "tasks", "java"), 0.0)
        for process in self.all_of_them():
            with suppress(psutil.Error):
                memory[kind_of(process)] += process.memory_full_info().pss / 2**20
        return memory


def kind_of(process: psutil.Process) -> str:
    """`tasks` are who supervises a task, what it does, spark-submit, and the driver's Python."""
    words = " ".join(process.cmdline())
    if process.name() == "java":
        return "java"
    if words.startswith("airflow worker -- "):
        return "airflow" if "<idle>" in words else "tasks"
    return "tasks" if "task" in words or "spark" in words else "airflow"


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
def at_work(
    folder: Path,
    lake: Path,
    way: str,
    *,
    starts_it: bool,
    create: Callable[[psycopg.Connection[Any]], None] = workloads.create,
    maintenance: str = "null",
    apart: bool = False,
) -> Iterator[tuple[str, Services]]:
    """Servers and Airflow with the pipeline, its DAG known and not paused; yields the source, and what runs."""
    services = Services(this_checkout(), folder=folder, apart=apart)
    services.pipelines.mkdir(parents=True)
    (services.pipelines / "latency.yaml").write_text(FILE.format(lake=lake, way=way, maintenance=maintenance))
    try:
        services.start_servers()
        source = services.server_of(DATABASES[0]).conninfo(DATABASES[0])
        with psycopg.connect(source, autocommit=True) as connection:
            create(connection)
        processes.start_airflow(services, Steps())
        api = AirflowApi(services.ui, processes.UI_USER, services.ui_password)
        waiting = Wait(WAIT_S, every_s=1)
        while not api.knows("latency_capture"):
            if not waiting.pause(lambda: "Airflow to know the DAG"):
                raise Refused("Airflow does not know the DAG")
        if starts_it:
            api.trigger("latency_capture")
        yield source, services
    finally:
        processes.stop_airflow(services)
        services.remove_servers()


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
    Benchmark(
        name="latency-busy",
        what="200 changes a second in 20 tables, commit to readable in Delta, one-minute schedule, median",
        beside="",
        goals=(Goal("seconds", 60),),
        unit="seconds",
        sizes={"tiny": 20, "small": 180, "full": 900},
        pairs=partial(busy_pairs, load=FEW, way=BY_MINUTES, starts_it=False),
    ),
    Benchmark(
        name="latency-busy-following",
        what="200 changes a second in 20 tables, commit to readable in Delta, every: 2s, median",
        beside="",
        goals=(Goal("seconds", 4),),
        unit="seconds",
        sizes={"tiny": 20, "small": 180, "full": 900},
        pairs=partial(busy_pairs, load=FEW, way=FOLLOWING, starts_it=True),
    ),
    Benchmark(
        name="latency-busier-following",
        what="5,000 changes a second in 100 tables, commit to readable in Delta, every: 2s, median",
        beside="",
        goals=(Goal("seconds", 8),),
        unit="seconds",
        sizes={"tiny": 20, "small": 180, "full": 600},
        pairs=partial(busy_pairs, load=MANY, way=FOLLOWING, starts_it=True),
    ),
)

if __name__ == "__main__":
    main(BENCHMARKS, about=__doc__)
