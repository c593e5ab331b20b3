"""Airflow's REST API, as far as the demo needs it: trigger a run, wait for it, say what its tasks did.

Airflow documentation: "Airflow public API", version 2, and "Simple auth manager" for the token.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class TaskRun:
    """`index` numbers the instances of a mapped task; -1 where it is not mapped."""

    task: str
    state: str
    seconds: float
    index: int = -1


@dataclass
class AirflowApi:
    """One user's session; the token is fetched at the first call and lives for a day."""

    url: str
    user: str
    password: str = field(repr=False)
    _token: str = field(default="", repr=False)

    def knows(self, dag_id: str) -> bool:
        """Whether the DAG is parsed; raises RuntimeError if its file cannot be imported."""
        errors = self._call("GET", "/api/v2/importErrors")["import_errors"]
        if errors:
            raise RuntimeError("\n".join(f"{e['filename']}: {e['stack_trace']}" for e in errors))
        try:
            return bool(self._call("GET", f"/api/v2/dags/{dag_id}"))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return False
            raise

    def pause(self, dag_id: str, paused: bool) -> None:
        self._call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": paused})

    def active_runs(self, dag_id: str) -> int:
        query = "state=running&state=queued&limit=1"
        return int(self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns?{query}")["total_entries"])

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None) -> str:
        """Start a run, its form filled in with `conf`, and return its id."""
        body = {"logical_date": None, "conf": conf or {}}
        return str(self._call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def state(self, dag_id: str, run_id: str) -> str:
        return str(self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def wait(self, dag_id: str, run_id: str, seconds: float) -> str:
        """Wait for the end of a run and return its state."""
        deadline = time.monotonic() + seconds
        while True:
            state = self.state(dag_id, run_id)
            if state in ("success", "failed"):
                return state
            if time.monotonic() > deadline:
                raise TimeoutError(f"run {run_id} of {dag_id} did not end within {seconds:.0f} s; it is {state}")
            time.sleep(1)

    def tasks(self, dag_id: str, run_id: str) -> list[TaskRun]:
        """The tasks of a run that have started, in the order in which they did."""
        instances = self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        started = sorted(
            (t for t in instances if t["start_date"]), key=lambda t: datetime.fromisoformat(t["start_date"])
        )
        return [TaskRun(t["task_id"], str(t["state"]), float(t["duration"] or 0), int(t["map_index"])) for t in started]

    def result(self, dag_id: str, run_id: str, task: str) -> Any:
        """What a task returned."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task}/xcomEntries/return_value"
        return self._call("GET", path)["value"]

    def log(self, dag_id: str, run_id: str, task: TaskRun) -> list[str]:
        """The lines of a task's last try."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task.task}"
        tries = self._call("GET", f"{path}/{task.index}" if task.index >= 0 else path)["try_number"]
        path = f"{path}/logs/{tries}?map_index={task.index}"
        return [text for line in self._call("GET", path)["content"] for text in _said(line)]

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        if not self._token:
            answer = self._ask("POST", "/auth/token", {"username": self.user, "password": self.password}, {})
            self._token = answer["access_token"]
        return self._ask(method, path, body, {"Authorization": f"Bearer {self._token}"})

    def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json", **headers}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with without_proxy.open(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")


def _said(line: dict[str, Any]) -> list[str]:
    """One structured log line as text, with the errors that it carries, outermost last."""
    errors = [f"{e['exc_type']}: {e['exc_value']}" for e in line.get("error_detail") or []]
    return [str(line.get("event", "")), *reversed(errors)]
