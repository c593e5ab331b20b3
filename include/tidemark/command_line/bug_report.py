"""Prints a text for a public bug report: versions, the pipeline's options and state, its last runs and plans.

Secrets are never collected, so none has to be blanked out. Of a connection it prints the type, the port and which parts
are set; of an error the message that logs have too; of the lake only the scheme. It prints no row's value.
"""

from __future__ import annotations

import dataclasses
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import psycopg
from pydantic import BaseModel

from tidemark.command_line import screen
from tidemark.command_line.invocation import Invocation
from tidemark.config import PipelineConfig
from tidemark.errors import TidemarkError
from tidemark.ledger import migrations
from tidemark.ledger.observations import runs
from tidemark.ledger.staged import plans
from tidemark.lsn import Lsn
from tidemark.observe import status_json
from tidemark.observe.status import read_status
from tidemark.postgres import postgres_session

PACKAGES: Final = (
    *("tidemark-cdc", "airflow-provider-tidemark", "tidemark", "apache-airflow"),
    *("apache-airflow-providers-apache-spark", "apache-airflow-providers-postgres"),
    *("apache-airflow-providers-standard", "pyspark", "pyspark-client", "delta-spark", "psycopg", "pyarrow", "pandas"),
    *("obstore", "numpy", "rich"),
)
LAST: Final = 10
_JAVA_TIMEOUT_S: Final = 30
_SECRET_SETTINGS: Final = ("password", "sslpassword", "passfile", "sslkey")


def bug_report(called: Invocation) -> int:
    config = called.config
    report = {
        "versions": _versions(),
        "pipeline": _options(config),
        "connections": {
            name: _connection(called, name)
            for name in (
                *(config.source_connection, config.ledger_connection, config.spark_connection),
                *filter(None, [config.lake_connection]),
            )
        },
        "source": _server(called, config.source_connection),
        "ledger": _server(called, config.ledger_connection) | _ledger(called),
        "status": _status(called),
    }
    if called.options.json:
        screen.dump(report)
        return 0
    for title, facts in report.items():
        screen.say("", title, "-" * len(title))
        screen.say(*_lines(facts))
    return 0


def _versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0], "platform": platform.platform(), "java": java_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def java_version(java: str | None = None) -> str:
    java = java or shutil.which("java")
    if java is None:
        return "not on the path"
    try:
        done = subprocess.run(
            [java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as failed:
        return type(failed).__name__
    return next(iter(done.stderr.splitlines()), "it said nothing")


def _options(config: PipelineConfig) -> dict[str, Any]:
    """What the file says, but for where the lake is, which says whose it is, and for what Spark is set to, which may be
    a key of an object store: of that the names."""
    shown = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in ("lake", "lake_access", "tables", "path", "bounds", "spark_conf")
        and not field.name.startswith("_")
    }
    changed = config.bounds.model_dump(exclude_defaults=True)
    tables = [
        {
            "pattern": rule.pattern,
            "masks": len(rule.mask),
            "left_out": len(rule.leave_out),
            "targets": len(rule.target),
        }
        for rule in config.tables
    ]
    scheme = config.lake.partition("://")[0] if "://" in config.lake else "a path"
    return {
        **{name: _plain(value) for name, value in shown.items()},
        "lake": scheme,
        "spark_conf": sorted(config.spark_conf),
        "bounds": changed,
        "tables": tables,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _connection(called: Invocation, name: str) -> dict[str, Any] | str:
    try:
        connection = called.look_up(name)
    except TidemarkError as wrong:
        return str(wrong)
    return {
        "type": connection.conn_type,
        "port": connection.port,
        "given": [part for part in ("host", "login", "password", "schema") if getattr(connection, part)],
        "extras": sorted(str(key) for key in connection.extra if key not in _SECRET_SETTINGS),
    }


def _server(called: Invocation, connection: str) -> dict[str, Any]:
    """What the server is, and its settings that matter to a slot."""
    conninfo = called.conninfo_or_error(connection)
    if isinstance(conninfo, TidemarkError):
        return {"cannot be seen": str(conninfo)}
    try:
        with postgres_session.connect(conninfo, application_name="tidemark doctor", statement_timeout_s=30) as session:
            rows = session.execute(
                """
                SELECT name, setting || coalesce(' ' || unit, '') FROM pg_settings
                 WHERE name IN ('server_version', 'wal_level', 'max_replication_slots', 'max_wal_senders',
                                'max_slot_wal_keep_size', 'wal_sender_timeout', 'server_encoding', 'TimeZone')
                 ORDER BY name
                """
            ).fetchall()
    except (TidemarkError, psycopg.Error) as failed:
        state = getattr(failed, "sqlstate", None)
        return {"cannot be seen": str(failed) if isinstance(failed, TidemarkError) else f"SQLSTATE {state}"}
    return dict(rows)


def _ledger(called: Invocation) -> dict[str, Any]:
    try:
        with called.open_ledger() as book:
            return {
                "migration": migrations.version(book.connection),
                "last plans": [_as_texts(plan) for plan in plans.last(book, LAST)],
                "last runs": [_as_text(run) for run in runs.last(book, LAST)],
            }
    except (TidemarkError, psycopg.Error) as failed:
        return {"cannot be read": str(failed) if isinstance(failed, TidemarkError) else type(failed).__name__}


def _as_texts(record: Any) -> dict[str, Any]:
    """A record's fields, times and LSNs as texts."""
    return {name: _as_text(value) for name, value in dataclasses.asdict(record).items()}


def _as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_text(inner) for name, inner in value.items()}
    return value if isinstance(value, int | float | bool | None) and not isinstance(value, Lsn) else str(value)


def _status(called: Invocation) -> dict[str, Any]:
    config = called.with_lake_if_found()
    status = read_status(
        config,
        source=called.conninfo_or_error(config.source_connection),
        ledger=called.conninfo_or_error(config.ledger_connection),
    )
    shown = status_json.to_json(status)
    states: dict[str, int] = {}
    for table in shown.pop("tables"):
        states[table["state"]] = states.get(table["state"], 0) + 1
    del shown["lake"], shown["file"]
    shown["concerns"] = [one for one in shown["concerns"] if one["severity"] != "note"]
    return {**shown, "tables": states}


def _lines(value: Any, depth: int = 0) -> list[str]:
    """Nested facts as indented lines."""
    margin = "  " * depth
    if isinstance(value, dict):
        lines = []
        for key, inner in value.items():
            if isinstance(inner, dict | list) and inner:
                lines += [f"{margin}{key}:", *_lines(inner, depth + 1)]
            else:
                lines.append(f"{margin}{key}: {'-' if inner in (None, [], {}) else inner}")
        return lines
    if isinstance(value, list):
        return [line for one in value for line in _item(one, margin, depth)]
    return [f"{margin}{value}"]


def _item(value: Any, margin: str, depth: int) -> list[str]:
    if not isinstance(value, dict):
        return [f"{margin}- {value}"]
    first, *rest = _lines(value, depth + 1)
    return [f"{margin}- {first.lstrip()}", *rest]
