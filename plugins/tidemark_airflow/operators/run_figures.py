"""Adds a task's figures to the run's row in the ledger: its time, or that the source had nothing to read.

Figures are for plots. A task that cannot write them says so and is what it would be without them.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from datetime import datetime
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from tidemark.errors import TidemarkError
from tidemark.unexpected_errors import without_texts
from tidemark_airflow.connections import conninfo
from tidemark_airflow.version_compat import AirflowSkipException, DagRunTriggerException

if TYPE_CHECKING:
    from tidemark.config import PipelineConfig
    from tidemark.ledger.connection import Ledger

log = logging.getLogger(__name__)

# What ends a task that is well.
GOOD_ENDS = (AirflowSkipException, DagRunTriggerException)

ERROR_CHARACTERS = 1000

Execute = Callable[[Any, Context], Any]


def run_id(context: Context) -> str:
    """Names the DAG run in the ledger; a pipeline's DAGs share one ledger, so the DAG is part of the name."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}"


def timed(execute: Execute) -> Execute:
    """Around `execute` of an operator with a `config`: its time goes into the run's row, under the task's id."""

    @functools.wraps(execute)
    def timing(operator: Any, context: Context) -> Any:
        began, failed, error = time.monotonic(), True, ""
        try:
            result = execute(operator, context)
            failed = False
            return result
        except GOOD_ENDS:
            failed = False
            raise
        except Exception as raised:
            error = _words(raised)
            raise
        finally:
            seconds = time.monotonic() - began

            def write(book: Ledger) -> None:
                from tidemark.ledger.observations import runs

                runs.note_stage(book, run_id(context), context["ti"].task_id, seconds, failed=failed, error=error)

            _write(operator.config, write)

    return timing


def _words(raised: Exception) -> str:
    """What the page may show of it: an error of the project's own, or what is left of another one's text."""
    error = raised if isinstance(raised, TidemarkError) else without_texts(raised)
    return shorten(str(error), ERROR_CHARACTERS, placeholder=" …") if isinstance(error, TidemarkError) else ""


def note_at_work(config: PipelineConfig, context: Context) -> None:
    """A later try of the task, which may last for hours, has begun to work."""

    def write(book: Ledger) -> None:
        from tidemark.ledger.observations import runs

        runs.note_at_work(book, run_id(context), context["ti"].task_id)

    if context["ti"].try_number > 1:
        _write(config, write)


def note_level(config: PipelineConfig, context: Context, at: datetime) -> None:
    """All that had committed at the source by `at` is staged."""

    def write(book: Ledger) -> None:
        from tidemark.ledger.observations import runs

        runs.note_level(book, run_id(context), at)

    _write(config, write)


def _write(config: PipelineConfig, write: Callable[[Ledger], None]) -> None:
    try:
        from tidemark.ledger.connection import open_ledger

        with open_ledger(conninfo(config.ledger_connection), config.pipeline) as book:
            write(book)
    except Exception as failed:
        log.warning("The run's figures were not written: %s", type(failed).__name__)
