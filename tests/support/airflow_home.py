"""A throw-away Airflow: folder + metadata database + connections -> commands, and a scheduler where a test wants one.

Everything goes by environment variables, so nothing of the machine's own Airflow is read or written. The metadata lives
in a database of the test's PostgreSQL server: SQLite loses triggers and answers 503 now and then.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from sandbox.services.postgres import free_port, wait_for

REPOSITORY = Path(__file__).resolve().parents[2]
AIRFLOW = Path(sys.executable).with_name("airflow")
# Names the Python of an environment with an Airflow and the wheel: the tests' Airflow is that one, and nothing of the
# checkout is on its path. `make versions` sets it.
INSTALLED = os.environ.get("TIDEMARK_INSTALLED")
THREE_LINES = """\
from tidemark_airflow.dag_factory import pipeline_dags

globals().update({dag.dag_id: dag for dag in pipeline_dags()})
"""
_USER = "admin"
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


# Somebody else's, beside those of Tidemark.
FOREIGN_DAG = """\
from airflow.sdk import DAG, task

with DAG(dag_id="foreign", schedule=None):

    @task
    def nothing() -> None: ...

    nothing()
"""


def postgres_connection(conninfo: str, **extra: Any) -> str:
    """An Airflow connection as JSON, for AIRFLOW_CONN_<ID>."""
    parameters = conninfo_to_dict(conninfo)
    return json.dumps(
        {
            "conn_type": "postgres",
            "host": parameters["host"],
            "port": int(str(parameters["port"])),
            "schema": parameters["dbname"],
            "login": parameters["user"],
            "password": parameters.get("password"),
            "extra": extra,
        }
    )


def spark_connection(master: str = "local[2]") -> str:
    return json.dumps({"conn_type": "spark", "host": master, "extra": {"deploy-mode": "client"}})


def delta_jars() -> str:
    """The folder of Delta's jars, as the set-up left it."""
    return os.environ.get("TIDEMARK_SPARK_JARS") or str(REPOSITORY / ".tidemark" / "jars")


def installed_settings(python: Path, folder: Path) -> dict[str, str]:
    """What an Airflow of another environment is told, with DAG files in `folder`: the three lines of the README, the
    example and one of somebody else's."""
    dags = folder / "dags"
    dags.mkdir(parents=True, exist_ok=True)
    (dags / "tidemark.py").write_text(THREE_LINES)
    (dags / "foreign.py").write_text(FOREIGN_DAG)
    example = "example_orders_report.py"
    (dags / example).write_text((REPOSITORY / "dags" / example).read_text())
    return {
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(folder / "no-plugins"),
        "PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]]),
        "PYTHONPATH": "",
        "VIRTUAL_ENV": str(python.parents[1]),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_HOME": next(map(str, python.parents[1].glob("lib/python*/site-packages/pyspark")), ""),
    }


@dataclass
class AirflowHome:
    """`folder` becomes AIRFLOW_HOME; `metadata` is the conninfo of its database; `connections` maps id to JSON."""

    folder: Path
    metadata: str
    pipelines: Path
    connections: Mapping[str, str]
    settings: Mapping[str, str] = field(default_factory=dict)
    # How this Airflow is called.
    program: tuple[str, ...] = (INSTALLED, "-m", "airflow") if INSTALLED else (str(AIRFLOW),)
    users: Mapping[str, str] = field(default_factory=lambda: {_USER: "admin"})  # name -> role; one password for all
    port: int = field(default_factory=free_port)
    # Every user of the machine reaches the port, and may start whatever a DAG starts once logged in.
    password: str = field(default_factory=lambda: secrets.token_urlsafe(16), repr=False)
    key: str = field(default_factory=lambda: secrets.token_urlsafe(64), repr=False)

    def environment(self) -> dict[str, str]:
        database = conninfo_to_dict(self.metadata)
        user = ":".join(quote(str(database[field])) for field in ("user", "password") if field in database)
        url = f"postgresql+psycopg2://{user}@{database['host']}:{database['port']}/{database['dbname']}"
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")},
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{user}:{role}" for user, role in self.users.items()),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.folder / "passwords.json"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{self.port}/execution/",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{self.port}",
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": self.key,
            "AIRFLOW__API_AUTH__JWT_SECRET": self.key,
            "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(self.key.encode()[:32]).decode(),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url,
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.folder / "logs"),
            "NO_PROXY": "127.0.0.1,localhost",
            "TIDEMARK_JVM_ARCHIVES": str(REPOSITORY / ".tidemark" / "cache" / "java"),
            "PYTHONPATH": str(REPOSITORY / "include"),
            "TIDEMARK_PIPELINES": str(self.pipelines),
            "TIDEMARK_SPARK_JARS": delta_jars(),
            **{f"AIRFLOW_CONN_{name.upper()}": value for name, value in self.connections.items()},
            **(installed_settings(Path(INSTALLED), self.folder) if INSTALLED else {}),
            **self.settings,
        }

    def run(self, *arguments: str, timeout_s: float = 600, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `airflow <arguments>` to its end; stdout holds both streams. Killed, all of it, after `timeout_s`."""
        process = self.start(*arguments, stdout=subprocess.PIPE, **variables)
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            raise AssertionError(f"airflow {' '.join(arguments)} ran for {timeout_s} s:\n{output[-6000:]}") from None
        return subprocess.CompletedProcess(process.args, process.returncode, output)

    def start(self, *arguments: str, stdout: Any, **variables: str) -> subprocess.Popen[str]:
        """Start `airflow <arguments>` as the leader of a process group of its own."""
        return subprocess.Popen(
            [*self.program, *arguments],
            env=self.environment() | variables,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            cwd=self.folder,
        )

    def migrate(self) -> None:
        """Create folder and metadata tables."""
        self.folder.mkdir(parents=True, exist_ok=True)
        process = self.run("db", "migrate")
        assert process.returncode == 0, process.stdout[-4000:]

    @contextmanager
    def services(self, *names: str) -> Iterator[list[subprocess.Popen[str]]]:
        """Run api-server, scheduler, … for the length of a `with` block, which gets their processes; their output lies
        in AIRFLOW_HOME."""
        started: list[subprocess.Popen[str]] = []
        passwords = self.folder / "passwords.json"
        passwords.touch(mode=0o600)
        passwords.write_text(json.dumps(dict.fromkeys(self.users, self.password)))
        try:
            for name in names:
                with (self.folder / f"{name}.log").open("a") as output:
                    started.append(self.start(name, stdout=output))
            yield started
        finally:
            for signum in (signal.SIGTERM, signal.SIGKILL):
                for process in started:
                    _signal_group(process, signum)
                for process in started:
                    try:
                        process.wait(timeout=15)
                    except subprocess.TimeoutExpired:
                        continue

    def task_states(self, dag_id: str) -> list[dict[str, str]]:
        """Per run of the DAG, oldest first, the state of each task."""
        runs: dict[str, dict[str, str]] = {}
        with psycopg.connect(self.metadata) as connection:
            for run, task, state in connection.execute(
                "SELECT r.run_id, t.task_id, t.state FROM dag_run r JOIN task_instance t USING (dag_id, run_id) "
                "WHERE r.dag_id = %s ORDER BY r.id",
                (dag_id,),
            ):
                runs.setdefault(run, {})[task] = state
        return list(runs.values())

    def asset_events(self) -> list[tuple[str, dict[str, Any]]]:
        """URI and extra of every asset event, oldest first."""
        with psycopg.connect(self.metadata) as connection:
            return connection.execute(
                "SELECT a.uri, e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id ORDER BY e.id"
            ).fetchall()

    def get(self, path: str) -> Any:
        """GET of the REST API, as JSON."""
        return self._call(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}"))

    def send(self, method: str, path: str, body: Any) -> Any:
        return self._call(
            urllib.request.Request(
                f"http://127.0.0.1:{self.port}{path}",
                method=method,
                data=json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
            )
        )

    def unpause(self, dag_id: str) -> bool:
        """True once Airflow knows the DAG and schedules it."""
        try:
            return self.send("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})["is_paused"] is False
        except urllib.error.HTTPError as refused:
            if refused.code == 404:
                return False
            raise

    def wait_until_healthy(self, *components: str, seconds: float = 120) -> None:
        """`airflow standalone` prints "ready" too early; the monitor tells."""

        def healthy() -> bool:
            try:
                health = self.get("/api/v2/monitor/health")
            except OSError:
                return False
            return all((health.get(component) or {}).get("status") == "healthy" for component in components)

        wait_for(f"Airflow's {', '.join(components)} are healthy", healthy, seconds)

    def _call(self, request: urllib.request.Request) -> Any:
        token = self.token()
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        with _DIRECT.open(request, timeout=30) as answer:
            return json.load(answer)

    def token(self, user: str = _USER) -> str:
        """What the user's requests carry."""
        login = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/auth/token",
            method="POST",
            data=json.dumps({"username": user, "password": self.password}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with _DIRECT.open(login, timeout=30) as answer:
            return str(json.load(answer)["access_token"])


def _signal_group(process: subprocess.Popen[str], signum: int) -> None:
    try:
        os.killpg(process.pid, signum)
    except ProcessLookupError:
        return
