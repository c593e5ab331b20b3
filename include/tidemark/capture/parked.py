"""Tables that were parked, or have errors that preflight found, and were not yet spoken of -> one message each, told
once (R6).

The ledger remembers whom it told, in the transaction around the telling: a notifier that fails leaves the message for
the next run, and a cleared task tells nothing again. A table that is un-parked and parked anew is told anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from shlex import quote

from tidemark.config import PipelineConfig
from tidemark.errors import BEGIN_ANEW, Move, leaf_of
from tidemark.formats import layout
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger import table_errors, tables
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.table_errors import TableErrors
from tidemark.names import TableName
from tidemark.run import Run
from tidemark.wording import duration


def announce_parked(run: Run, *, tell: Callable[[str], None]) -> list[str]:
    """Call `tell` with a message per table that was newly parked or has errors since the last time, and return the
    messages. Raises what `tell` raises."""
    config = run.config
    messages = []
    with open_ledger(run.ledger, config.pipeline) as book:
        for row in tables.all_of(book):
            if not row.life.is_parked or row.error is None or not row.life.is_listed:
                continue
            with book.transaction():
                if tables.notified(book, row.table):
                    messages.append(_message(config, row.table, row.error))
                    tell(messages[-1])
        for entry in table_errors.all_of(book):
            with book.transaction():
                if table_errors.notified(book, entry.table):
                    messages.append(_of_preflight(config, entry))
                    tell(messages[-1])
    return messages


def _of_preflight(config: PipelineConfig, entry: TableErrors) -> str:
    predicate = "is not captured" if entry.barred else "has an error"
    return f"Table {entry.table} of pipeline {config.pipeline} {predicate}; the other tables go on. {entry.message}"


def _message(config: PipelineConfig, table: str, error: ErrorRecord) -> str:
    sentence = (
        f"Table {table} of pipeline {config.pipeline} was parked ({error.kind}): {error.message} Its changes are "
        "staged meanwhile, and the other tables go on."
    )
    return "\n".join([sentence, *ways_on(config, table, error)])


def ways_on(config: PipelineConfig, table: str, error: ErrorRecord) -> list[str]:
    """What ends the park, one line for each way that the error's remedy offers, with its commands."""
    unpark = f"tidemark unpark {quote(config.path)} {quote(table)}"
    if error.move == Move.RETRY:
        again = duration(config.bounds.unpark_retry_s)
        return [f"It is tried again {again} after the last time; to have the next run try it: {unpark}"]
    leaf = leaf_of(error.kind)
    conf = quote(json.dumps({"tables": [table]}))
    backfill = f"airflow dags trigger {config.pipeline}_backfill --conf {conf}"
    offers_anew = leaf is not None and BEGIN_ANEW in leaf.remedy
    then = f"; then: {backfill}" if error.move == Move.BACKFILL else ""
    ways = [f"{'To go on with its Delta tables, once they fit' if offers_anew else 'After that'}: {unpark}{then}"]
    if offers_anew:
        name = TableName.parse(table)
        both = f"{layout.history_table(config.pipeline, name)} and {layout.current_table(config.pipeline, name)}"
        ways.append(
            f"To begin anew, once {both} are removed from {config.lake}: {unpark} --anew; then let a run of "
            f"{config.pipeline}_capture end; then: {backfill}"
        )
    return ways
