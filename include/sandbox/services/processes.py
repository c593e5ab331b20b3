"""`make up` and `make down`: embedded PostgreSQL and Airflow's four processes, started, watched, and stopped exactly;
with CLUSTER=1 a Spark Master, two Workers and an S3 server besides, which the same pipeline then merges on and into.

What runs is written down in .tidemark/services.json: each process with its pid and its start time, so that `down` never
stops a process that merely got the same pid. PostgreSQL holds three databases: `shop` (the source), `tidemark` (the
ledger) and `airflow` (Airflow's metadata). Everything listens on 127.0.0.1 alone, and asks for a password that was made
for this checkout.

    nothing ──up──► running ──up──► "already running"
       ▲──────down────┘
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql

from sandbox.checkout import Checkout
from sandbox.demo import shop
from sandbox.services.daemon import Daemon
from sandbox.services.object_store import REGION, ObjectStore
from sandbox.services.postgres import PostgresServer
from sandbox.services.spark_cluster import SparkCluster
from sandbox.steps import StepFailed, Steps, run

DATABASES = ("shop", "tidemark", "airflow")
UI_USER = "admin"
CLUSTER_VARIABLE = "CLUSTER"
FOLLOW_VARIABLE = "FOLLOW"
WORKERS = 2
SHOP = "shop"
_UI_PORT = 8080
_SPARK_UI_PORT = 8180
_SPARK_PORT = 7077
_S3_PORT = 9000
_HEALTHY_S = 180
_STOP_S = 30


@dataclass(frozen=True, slots=True)
class Process:
    """A process that leads a session of its own; `started` is its start time as the machine says it."""

    name: str
    pid: int
    started: float

    @property
    def alive(self) -> bool:
        started = _started(self.pid)
        return started is not None and self._is(started)

    def _is(self, started: float) -> bool:
        return abs(started - self.started) < 2  # it is computed from the boot time, which moves with the clock

    def session(self) -> list[int]:
        """Its own pid and those of its descendants, also where it has ended before them.

        A pid is not given away while a session is named by it: a stranger with this pid means that the session is over.
        """
        started = _started(self.pid)
        if started is not None and not self._is(started):
            return []
        return [pid for pid in psutil.pids() if _session_of(pid) == self.pid and _started(pid) is not None]


@dataclass
class Services:
    """What services.json holds. The secrets are made once per checkout, the ports are kept while they are free."""

    checkout: Checkout
    postgres_port: int = 0
    ui_port: int = 0
    postgres_password: str = field(default_factory=lambda: secrets.token_urlsafe(16), repr=False)
    ui_password: str = field(default_factory=lambda: secrets.token_urlsafe(9), repr=False)
    signing_key: str = field(default_factory=lambda: secrets.token_urlsafe(48), repr=False)
    on_cluster: bool = False
    follows: bool = False  # its pipeline follows its source
    spark_port: int = 0
    spark_ui_port: int = 0
    spark_secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    s3_port: int = 0
    s3_key: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    s3_secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    processes: list[Process] = field(default_factory=list)

    @classmethod
    def read(cls, checkout: Checkout) -> Services:
        file = checkout.made / "services.json"
        if not file.exists():
            return cls(checkout)
        raw = json.loads(file.read_text())
        return cls(checkout, **{**raw, "processes": [Process(**p) for p in raw["processes"]]})

    def write(self) -> None:
        content = {k: v for k, v in self.__dict__.items() if k not in ("checkout", "processes")}
        content["processes"] = [asdict(p) for p in self.processes]
        _private(self.checkout.made / "services.json", json.dumps(content, indent=1))

    # --- where things are ----------------------------------------------------------------------------------------

    @property
    def server(self) -> PostgresServer:
        return PostgresServer(self.checkout.made / "postgres", port=self.postgres_port, password=self.postgres_password)

    @property
    def source(self) -> str:
        return self.server.conninfo("shop")

    @property
    def ledger(self) -> str:
        return self.server.conninfo("tidemark")

    @property
    def ui(self) -> str:
        return f"http://127.0.0.1:{self.ui_port}"

    @property
    def spark(self) -> SparkCluster:
        home = Path(self.checkout.environment({})["SPARK_HOME"])
        folder = self.checkout.made / "cluster"
        return SparkCluster(home, folder, self.spark_port, self.spark_ui_port, self.spark_secret)

    @property
    def object_store(self) -> ObjectStore:
        return ObjectStore(self.checkout.made / "cluster" / "s3", self.s3_port, self.s3_key, self.s3_secret)

    @property
    def pipelines(self) -> Path:
        """The folder of the pipeline's file: the shop's with its lake in a folder here, or in a bucket."""
        include = self.checkout.root / "include"
        if self.follows:
            return include / "sandbox" / "demo" / "following"
        return include / "sandbox" / "demo" / "on_cluster" if self.on_cluster else include / "pipelines"

    @property
    def airflow_runs(self) -> bool:
        return bool(self.processes) and all(p.alive for p in self.processes)

    def environment(self) -> dict[str, str]:
        """What Airflow's processes are told."""
        checkout = self.checkout
        home = checkout.made / "airflow"
        database = f"postgres:{quote(self.postgres_password)}@127.0.0.1:{self.postgres_port}"
        connection = {"conn_type": "postgres", "host": "127.0.0.1", "port": self.postgres_port, "login": "postgres"}
        connection["password"] = self.postgres_password
        spark = {"conn_type": "spark", "host": "local[*]", "extra": {"deploy-mode": "client"}}
        return checkout.environment(os.environ) | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(checkout.root / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(checkout.root / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{UI_USER}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.ui}/execution/",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{database}/airflow",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.ui_port),
            "AIRFLOW__API__BASE_URL": self.ui,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": self.signing_key,
            "AIRFLOW__API_AUTH__JWT_SECRET": self.signing_key,
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "15",
            "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "AIRFLOW_CONN_SHOP_SOURCE": json.dumps({**connection, "schema": "shop"}),
            "AIRFLOW_CONN_TIDEMARK_LEDGER": json.dumps({**connection, "schema": "tidemark"}),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
            **(self._of_the_cluster() if self.on_cluster else {}),
            **({"TIDEMARK_PIPELINES": str(self.pipelines)} if self.follows else {}),
        }

    def _of_the_cluster(self) -> dict[str, str]:
        """All machines of it are this one, so they all have the jars at one place (`local:`). To Spark that is a URI,
        and on its way to the executors it loses what stands for a space: then the driver sends the jars."""
        jars = str(self.checkout.jars)
        lake = {"conn_type": "aws", "login": self.s3_key, "password": self.s3_secret}
        lake_extra = {"endpoint_url": self.object_store.url, "region_name": REGION}
        spark = {"conn_type": "spark", "host": self.spark.master, "extra": {"deploy-mode": "client"}}
        return {
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
            "AIRFLOW_CONN_SHOP_LAKE": json.dumps({**lake, "extra": lake_extra}),
            "SPARK_CONF_DIR": str(self.spark.configuration),
            "TIDEMARK_PIPELINES": str(self.pipelines),
            "TIDEMARK_SPARK_JARS": f"local:{jars}" if quote(jars) == jars else jars,
        }


# --- up --------------------------------------------------------------------------------------------------------------


def up(checkout: Checkout) -> int:
    services = Services.read(checkout)
    if services.airflow_runs and services.server.is_running():
        refuse_another_kind(services)
        print("already running")
    else:
        steps = Steps()
        services = start_postgres(checkout, steps)
        start_airflow(services, steps)
        if services.on_cluster:
            start_shop(services)
    print(f"\n  Airflow     {services.ui}   user {UI_USER}, password {services.ui_password}")
    print(f"  PostgreSQL  127.0.0.1:{services.postgres_port}, user postgres, password {services.postgres_password}")
    print("              databases: shop (the source), tidemark (the ledger), airflow (Airflow's own)")
    if services.on_cluster:
        print(f"  Spark       {services.spark.master}, its page {services.spark.ui}")
        print(
            "  Shop        at work, with new orders every 20 s; trigger shop_backfill for those from before the capture"
        )
        print(f"  S3          {services.object_store.url}, key {services.s3_key}, secret {services.s3_secret}")
    print("  Logs        .tidemark/logs and .tidemark/airflow/logs;  stop all of it with `make down`")
    return 0


def wants_cluster() -> bool:
    """Whether `make … CLUSTER=1` was said."""
    return _is_said(CLUSTER_VARIABLE)


def _is_said(variable: str) -> bool:
    return os.environ.get(variable, "") not in ("", "0")


def refuse_another_kind(services: Services) -> None:
    """What runs without a cluster cannot become one that has it, and the other way round nobody needs to ask."""
    if wants_cluster() and not services.on_cluster:
        raise StepFailed("All of it runs without a cluster; `make down` first.")
    if _is_said(FOLLOW_VARIABLE) != services.follows:
        raise StepFailed("All of it runs with another pipeline file; `make down` first.")


def start_cluster(services: Services, steps: Steps) -> None:
    """Spark's Master, its Workers and the S3 server, and wait until the Workers are known and the bucket is there."""
    services.spark_port = _free_port(services.spark_port or _SPARK_PORT)
    services.spark_ui_port = _free_port(services.spark_ui_port or _SPARK_UI_PORT)
    services.s3_port = _free_port(services.s3_port or _S3_PORT)
    services.write()
    spark, store = services.spark, services.object_store
    env = services.checkout.environment(os.environ)
    defaults = services.checkout.made / "tmp" / "spark-warehouse"
    spark.configure({"spark.sql.warehouse.dir": str(defaults)})
    with steps.step(f"an S3 server, a Spark Master and {WORKERS} Workers"):
        _launch(services, store.daemon(), env)
        _launch(services, spark.master_daemon(), env)
        _wait_for_all(
            services, "Spark's Master and the S3 server answer", lambda: _workers(spark) >= 0 and store.answers()
        )
        for number in range(1, WORKERS + 1):
            _launch(services, spark.worker_daemon(number, cores=2, memory="2g"), env)
        _wait_for_all(services, "the Workers have joined", lambda: _workers(spark) == WORKERS)


def start_shop(services: Services) -> None:
    """Somebody who buys and cancels, every some seconds."""
    source = services.server.conninfo_for_programs("shop")
    command = (str(services.checkout.python), "-m", "sandbox.demo.shop", source)
    _spawn(services, SHOP, command, services.checkout.environment(os.environ), services.checkout.made)


def stop_shop(services: Services) -> None:
    """Where it is at work."""
    for process in [process for process in services.processes if process.name == SHOP]:
        for pid in process.session():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        services.processes.remove(process)
    services.write()


def _launch(services: Services, daemon: Daemon, env: dict[str, str]) -> None:
    _spawn(services, daemon.name, daemon.command, {**env, **daemon.environment}, services.checkout.made)


def _workers(spark: SparkCluster) -> int:
    """How many its Master knows; -1 while it does not answer."""
    try:
        return int(json.loads(_get(f"{spark.ui}/json/"))["aliveworkers"])
    except (OSError, ValueError):
        return -1


def _wait_for_all(services: Services, fact: str, holds: Callable[[], bool]) -> None:
    def still() -> bool:
        _refuse_the_dead(services)
        return holds()

    if not _within(_HEALTHY_S, still):
        raise StepFailed(f"Not within {_HEALTHY_S} s: {fact}. See .tidemark/logs")


def start_airflow(services: Services, steps: Steps, *, scheduled: bool = True) -> None:
    """Start Airflow's processes, those of the cluster before them if one is wanted, and wait until Airflow says that it
    is healthy; PostgreSQL has to run.

    Unless `scheduled`, runs happen only when they are triggered.
    """
    stop_airflow(services)  # what is left where one process has ended
    services.on_cluster, services.follows = wants_cluster(), _is_said(FOLLOW_VARIABLE)
    if services.on_cluster and services.follows:
        raise StepFailed("CLUSTER=1 and FOLLOW=1 are two demos")
    services.ui_port = _free_port(services.ui_port or _UI_PORT)
    services.write()
    try:
        if services.on_cluster:
            start_cluster(services, steps)
        _start_airflow(services, steps, scheduled)
    except BaseException:
        stop_airflow(services)
        raise


def _start_airflow(services: Services, steps: Steps, scheduled: bool) -> None:
    env = services.environment() | {"AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": str(scheduled)}
    home = Path(env["AIRFLOW_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    _private(home / "passwords.json", json.dumps({UI_USER: services.ui_password}))
    _migrate(services, steps, env, home)
    with steps.step("Airflow: scheduler, DAG processor, triggerer, API server"):
        for arguments in (["api-server"], ["dag-processor"], ["triggerer", "--skip-serve-logs"]):
            spawn_airflow(services, arguments, env, home)
        _wait_until_healthy(services, "metadatabase")
        # Last: a task that starts before the API server answers fails, and a waiting run would be the first.
        spawn_airflow(services, ["scheduler", "--skip-serve-logs"], env, home)
        _wait_until_healthy(services, "scheduler", "dag_processor", "triggerer")


def _migrate(services: Services, steps: Steps, env: dict[str, str], home: Path) -> None:
    """Airflow's tables, unless this database got them from this Airflow before: looking costs it six seconds."""
    checkout = services.checkout
    with psycopg.connect(services.server.conninfo("airflow")) as connection:
        query = "SELECT oid, to_regclass('alembic_version') IS NOT NULL FROM pg_database WHERE datname = 'airflow'"
        oid, migrated = connection.execute(query).fetchone() or (0, False)
    made_from = f"{version('apache-airflow')} {oid}\n"
    stamp = checkout.stamps / "airflow"
    if migrated and stamp.exists() and stamp.read_text() == made_from:
        return
    with steps.step("Airflow's tables in the database airflow"):
        migrate = [checkout.python, "-m", "airflow", "db", "migrate"]
        run(migrate, checkout.logs / "airflow-migrate.log", env=env, cwd=home)
    stamp.write_text(made_from)


def start_postgres(checkout: Checkout, steps: Steps) -> Services:
    """The server and its three databases; the shop's tables, still empty, so that the pipeline finds its source."""
    services = Services.read(checkout)
    services.write()  # the password has to be kept before a cluster is made with it
    with steps.step("PostgreSQL 18 with wal_level=logical"):
        server = services.server
        if not server.is_running() and server.port and not _is_free(server.port):
            server.port = 0
        server.start()
        services.postgres_port = server.port
        services.write()
        for database in DATABASES:
            create_database(server, database)
        shop.create_tables(services.source)
    return services


def create_database(server: PostgresServer, name: str) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        if connection.execute("SELECT FROM pg_database WHERE datname = %s", (name,)).fetchone() is None:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def spawn_airflow(services: Services, arguments: list[str], env: dict[str, str], home: Path) -> None:
    command = (str(services.checkout.python), "-m", "airflow", *arguments)
    _spawn(services, f"airflow-{arguments[0]}", command, env, home)


def _spawn(services: Services, name: str, command: Sequence[str], env: dict[str, str], folder: Path) -> None:
    """A process of its own session: Ctrl-C in this terminal does not reach it, and `down` can end all of it."""
    with (services.checkout.logs / f"{name}.log").open("a") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
    services.processes.append(Process(name, child.pid, _started(child.pid) or 0.0))
    services.write()


def _refuse_the_dead(services: Services) -> None:
    for process in services.processes:
        if not process.alive:
            raise StepFailed(f"{process.name} ended; see .tidemark/logs/{process.name}.log")


def _wait_until_healthy(services: Services, *names: str) -> None:
    """Airflow says "ready" early; its monitor counts only parts whose heartbeat is recent."""

    def healthy() -> bool:
        try:
            state = json.loads(_get(f"{services.ui}/api/v2/monitor/health"))
        except (OSError, ValueError):
            return False
        return all((state.get(name) or {}).get("status") == "healthy" for name in names)

    _wait_for_all(services, "Airflow is healthy", healthy)


def _get(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=5) as answer:
        return str(answer.read().decode())


# --- down ------------------------------------------------------------------------------------------------------------


def down(checkout: Checkout) -> int:
    services = Services.read(checkout)
    running = services.server.is_running()
    if not running and not any(p.alive for p in services.processes):
        print("nothing runs")
        return 0
    steps = Steps()
    if services.processes:
        with steps.step("stop Airflow and Spark's cluster" if services.on_cluster else "stop Airflow"):
            stop_airflow(services)
    if running:
        with steps.step("stop PostgreSQL"):
            services.server.stop()
    return 0


def stop_airflow(services: Services) -> None:
    """Ask every process to end; kill what is then still there, a task's Spark driver too: it may die anywhere (R5)."""
    for process in services.processes:
        if process.alive:
            os.kill(process.pid, signal.SIGTERM)
    _within(_STOP_S, lambda: not any(p.alive for p in services.processes))
    for process in services.processes:
        for pid in process.session():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    services.processes = []
    services.write()


# --- small facts about this machine ----------------------------------------------------------------------------------


def _started(pid: int) -> float | None:
    """None if there is no such process, or only what its parent has not yet collected."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_port(first: int) -> int:
    return next(port for port in range(first, first + 1000) if _is_free(port))


def _within(seconds: float, fact: Callable[[], Any]) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if fact():
            return True
        time.sleep(0.2)
    return False


def _private(file: Path, content: str) -> None:
    """Written aside and renamed, readable by its owner alone from the first byte."""
    aside = file.with_suffix(".new")
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        out.write(content)
    aside.replace(file)
