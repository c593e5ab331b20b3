"""Prints a text for a public bug report: versions, the pipeline's options and state, its last runs and plans.

It never collects secrets, so none has to be blanked out. It prints a connection's type, port and the names of its set
fields; an error's message, as in the logs; and of the lake only the scheme. It prints no row's value.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections import Counter
from typing import Any, Final

import psycopg
import yaml
from pydantic_core import to_jsonable_python

from tidemark.capture.preflight.airflow_findings import installed
from tidemark.command_line import screen
from tidemark.command_line.invocation import Invocation
from tidemark.config import PipelineConfig
from tidemark.errors import TidemarkError
from tidemark.ledger import migrations
from tidemark.ledger.observations import runs
from tidemark.ledger.staged import plans
from tidemark.observe import status_json
from tidemark.postgres import postgres_session
from tidemark.strict_json import to_builtins

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
    screen.say(yaml.safe_dump(report, sort_keys=False, allow_unicode=True, width=1_000_000))
    return 0


def _versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0], "platform": platform.platform(), "java": java_version()}
    return versions | {package: installed(package) or "not installed" for package in PACKAGES}


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
    """The options of the file. The lake's place is left out, since it names its owner. Of Spark's settings only the
    names are included, since a value may be a key of an object store."""
    elsewhere = {"lake", "lake_access", "tables", "path", "bounds", "spark_conf", "_rules"}
    tables = [
        {
            "pattern": rule.pattern,
            "masks": len(rule.mask),
            "left_out": len(rule.leave_out),
            "targets": len(rule.target),
        }
        for rule in config.tables
    ]
    return {
        **to_jsonable_python(config, exclude=elsewhere),
        "lake": config.lake.partition("://")[0] if "://" in config.lake else "a path",
        "spark_conf": sorted(config.spark_conf),
        "bounds": config.bounds.model_dump(exclude_defaults=True),
        "tables": tables,
    }


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
    """The server's version, and its settings that matter for a slot."""
    try:
        conninfo = called.look_up(connection).conninfo()
        with postgres_session.connect(conninfo, application_name="tidemark doctor", statement_timeout_s=30) as session:
            rows = session.execute(
                """
                SELECT name, setting || coalesce(' ' || unit, '') FROM pg_settings
                 WHERE name IN ('server_version', 'wal_level', 'max_replication_slots', 'max_wal_senders',
                                'max_slot_wal_keep_size', 'wal_sender_timeout', 'server_encoding', 'TimeZone')
                 ORDER BY name
                """
            ).fetchall()
    except TidemarkError as failed:
        return {"cannot be seen": str(failed)}
    except psycopg.Error as failed:
        return {"cannot be seen": f"SQLSTATE {failed.sqlstate}"}
    return dict(rows)


def _ledger(called: Invocation) -> dict[str, Any]:
    try:
        with called.open_ledger() as book:
            return {
                "migration": migrations.version(book.connection),
                "last plans": to_builtins(plans.last(book, LAST)),
                "last runs": to_builtins(runs.last(book, LAST)),
            }
    except (TidemarkError, psycopg.Error) as failed:
        return {"cannot be read": str(failed) if isinstance(failed, TidemarkError) else type(failed).__name__}


def _status(called: Invocation) -> dict[str, Any]:
    shown = status_json.to_json(called.read_status())
    states = Counter(table["state"] for table in shown.pop("tables"))
    del shown["lake"], shown["file"]
    shown["concerns"] = [one for one in shown["concerns"] if one["severity"] != "note"]
    return {**shown, "tables": dict(states)}
