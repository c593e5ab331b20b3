"""Answers the page's routes from the library: pipelines, their state, one table, figures over time.

A status is kept for a few seconds: ten people who look at one pipeline cost its source and its ledger as much as one.
The object store is asked for one table's newest changes alone, and when somebody wants to see them.
"""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, Final

from tidemark.capture import pg_upgrade
from tidemark.config import PipelineConfig, file_reader
from tidemark.errors import TidemarkError
from tidemark.ledger import migrations
from tidemark.ledger.captured import table_details
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.observations import delays, run_rates
from tidemark.observe import newest_changes, status_json, table_commands
from tidemark.observe.status import read_status
from tidemark.run import Run
from tidemark.strict_json import to_builtins
from tidemark_airflow.connections import conninfo, with_lake
from tidemark_airflow.dag_factory import PIPELINES_VARIABLE

KEPT_S: Final = 5.0
_CHECKOUT: Final = Path(__file__).resolve().parents[3] / "include" / "pipelines"


def pipelines_folder() -> Path | None:
    """Where the pipeline files are, as the DAGs find them; the API server needs to see them too."""
    named = os.environ.get(PIPELINES_VARIABLE)
    folder = Path(named) if named else _CHECKOUT
    return folder if folder.is_dir() else None


class Reading:
    """All answers of one API server."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._kept: dict[str, tuple[float, dict[str, Any]]] = {}
        self._locks: dict[str, Lock] = {}
        self._guard = Lock()

    def pipelines(self) -> tuple[list[PipelineConfig], list[str]]:
        """The sound pipeline files, and the problems of the others."""
        if self._folder is None:
            return [], []
        configs, problems = file_reader.read_all(self._folder)
        return configs, [str(problem) for problem in problems]

    def pipeline(self, name: str) -> PipelineConfig | None:
        return next((config for config in self.pipelines()[0] if config.pipeline == name), None)

    def status(self, config: PipelineConfig) -> dict[str, Any]:
        """How the pipeline stands, at most `KEPT_S` seconds ago."""
        with self._guard:
            lock = self._locks.setdefault(config.pipeline, Lock())
        with lock:
            kept = self._kept.get(config.pipeline)
            if kept is None or time.monotonic() - kept[0] > KEPT_S:
                kept = (time.monotonic(), self._status(config))
                self._kept[config.pipeline] = kept
        return kept[1]

    def overview(self, config: PipelineConfig) -> dict[str, Any]:
        """The pipeline's line among all of them."""
        whole = self.status(config)
        return status_json.overview(whole) | {"rates": whole["rates"]}

    def _status(self, config: PipelineConfig) -> dict[str, Any]:
        status = read_status(
            config,
            source=self._conninfo(config.source_connection),
            ledger=self._conninfo(config.ledger_connection),
            of_lake=False,
        )
        return status_json.to_json(status) | self._present(config)

    def _present(self, config: PipelineConfig) -> dict[str, Any]:
        """What runs and merges of the last while say; None if the ledger cannot be seen, which the status says."""
        import psycopg

        now = datetime.now(UTC)
        try:
            with self._open_ledger(config) as book:
                return {"rates": run_rates.rates(book, now), "delays": to_builtins(delays.present(book, now))}
        except (TidemarkError, psycopg.Error):
            return {"rates": None, "delays": None}

    def _open_ledger(self, config: PipelineConfig) -> AbstractContextManager[Ledger]:
        return open_ledger(conninfo(config.ledger_connection), config.pipeline)

    def _conninfo(self, connection: str) -> str | TidemarkError:
        try:
            return conninfo(connection)
        except TidemarkError as wrong:
            return wrong

    def table(self, config: PipelineConfig, table: str) -> dict[str, Any] | None:
        """What only the page of one table shows, by its id; None if there is no such table."""
        with self._open_ledger(config) as book:
            migrations.require(book.connection)
            details = table_details.read(book, table)
        return None if details is None else status_json.details_to_json(config, details)

    def changes(self, config: PipelineConfig, table: str) -> list[dict[str, Any]]:
        """The newest changes of one table, with the values of its rows; this reads the lake."""
        ledger = conninfo(config.ledger_connection)
        return newest_changes.read(with_lake(config), table, ledger=ledger)

    def figures(self, config: PipelineConfig, hours: int) -> dict[str, list[Any]]:
        with self._open_ledger(config) as book:
            if migrations.pending(book.connection).before is None:
                return {"at": []}  # of a new pipeline; its first run makes the ledger
            migrations.require(book.connection)
            return run_rates.over_time(book, hours, datetime.now(UTC))

    def act(self, config: PipelineConfig, action: str, table: str, who: str) -> tuple[str, bool]:
        """Do what a button says; what to say of it, and whether anything was done."""
        ledger = conninfo(config.ledger_connection)
        try:
            if action == "unpark":
                return table_commands.unpark(config, table, ledger=ledger, who=who)
            if action == "pause":
                return table_commands.pause(config, table, ledger=ledger, who=who)
            return table_commands.resume(config, table, ledger=ledger)
        finally:
            self._kept.pop(config.pipeline, None)

    def continue_upgraded(self, config: PipelineConfig, who: str) -> tuple[str, bool]:
        """Continue on the server that pg_upgrade made; this writes a file into the lake. What to say of it, and
        whether it was done."""
        run = Run(
            with_lake(config),
            source=conninfo(config.source_connection),
            ledger=conninfo(config.ledger_connection),
            run_id=f"page/{who}",
            holder=f"page/{who}",
        )
        try:
            return pg_upgrade.continue_upgraded(run, who=who)
        finally:
            self._kept.pop(config.pipeline, None)
