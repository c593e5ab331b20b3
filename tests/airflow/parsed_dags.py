"""Run in a process of its own: parse dags/ with the network blocked for each folder of pipeline files that is named,
and print what came of it as a line of JSON."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any


def _blocked(*arguments: object, **options: object) -> None:
    raise AssertionError("a DAG file opened a network connection while it was parsed")


def main() -> None:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.serialization.serialized_objects import DagSerialization

    socket.socket.connect = _blocked  # type: ignore[method-assign, assignment]
    socket.socket.connect_ex = _blocked  # type: ignore[method-assign, assignment]
    socket.getaddrinfo = _blocked  # type: ignore[assignment]
    folder = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    for pipelines in sys.argv[1:]:
        os.environ["TIDEMARK_PIPELINES"] = pipelines
        before = set(sys.modules)
        bag = DagBag(folder, bundle_path=folder, bundle_name="test")
        facts: dict[str, Any] = {
            "import_errors": bag.import_errors,
            "imported_by_dags": sorted(set(sys.modules) - before),
            "dags": {dag_id: _dag(dag) for dag_id, dag in bag.dags.items()},
            "serialized": {dag_id: bool(DagSerialization.to_dict(dag)) for dag_id, dag in bag.dags.items()},
        }
        print("FACTS " + json.dumps(facts, default=str))


def _dag(dag: Any) -> dict[str, Any]:
    return {
        "schedule": dag.schedule if isinstance(dag.schedule, str) else str(dag.schedule),
        "catchup": dag.catchup,
        "max_active_runs": dag.max_active_runs,
        "allowed_run_types": sorted(kind.value for kind in dag.allowed_run_types or ()),
        "dagrun_timeout_s": dag.dagrun_timeout.total_seconds() if dag.dagrun_timeout else None,
        "is_paused_upon_creation": dag.is_paused_upon_creation,
        "doc_md": dag.doc_md,
        "tags": sorted(dag.tags),
        "tasks": {
            task.task_id: {
                "class": type(task).__name__,
                "trigger_rule": str(task.trigger_rule.value),
                "retries": task.retries,
                "links": sorted(link.name for link in task.operator_extra_links),
                "execution_timeout_s": task.execution_timeout.total_seconds() if task.execution_timeout else None,
                "max_active_tis_per_dag": task.max_active_tis_per_dag,
                "pool": task.pool,
                "upstream": sorted(task.upstream_task_ids),
            }
            for task in dag.tasks
        },
    }


if __name__ == "__main__":
    main()
