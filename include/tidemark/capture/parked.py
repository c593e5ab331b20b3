"""Tables that were parked, or have errors that preflight found, and were not yet spoken of -> one message each, told
once (R6).

The ledger remembers whom it told, in the transaction around the telling: a notifier that fails leaves the message for
the next run, and a cleared task tells nothing again. A table that is un-parked and parked anew is told anew.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemark.config import PipelineConfig
from tidemark.errors import Move
from tidemark.ledger import table_errors, tables
from tidemark.ledger.connection import connect
from tidemark.ledger.table_errors import TableErrors


def announce_parked(config: PipelineConfig, *, ledger: str, tell: Callable[[str], None]) -> list[str]:
    """Call `tell` with a message per table that was newly parked or has errors since the last time, and return the
    messages. Raises what `tell` raises."""
    messages = []
    with connect(ledger) as connection:
        for row in tables.all_of(connection, config.pipeline):
            if row.state != "parked" or row.error is None:
                continue
            with connection.transaction():
                if tables.notified(connection, config.pipeline, row.table):
                    messages.append(_message(config, row.table, row.error))
                    tell(messages[-1])
        for found in table_errors.all_of(connection, config.pipeline):
            with connection.transaction():
                if table_errors.notified(connection, config.pipeline, found.table):
                    messages.append(_of_preflight(config, found))
                    tell(messages[-1])
    return messages


def _of_preflight(config: PipelineConfig, found: TableErrors) -> str:
    what = "is not captured" if found.barred else "has an error"
    return f"Table {found.table} of pipeline {config.pipeline} {what}; the other tables go on. {found.message}"


def _message(config: PipelineConfig, table: str, error: dict[str, str]) -> str:
    next_step = (
        f"It is tried again every {config.bounds.unpark_retry_s} s."
        if error["move"] == Move.RETRY
        else f"After that: python -m tidemark unpark {config.path} {table}"
    )
    return (
        f"Table {table} of pipeline {config.pipeline} was parked ({error['kind']}): {error['message']} Its changes are "
        f"staged meanwhile, and the other tables go on. {next_step}"
    )
