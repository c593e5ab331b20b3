"""Tables that were parked since the last run -> one message each, told once (R6).

The ledger remembers whom it told: `notified_at` is set in the transaction around the telling, so a notifier that fails leaves
the message for the next run, and a cleared task tells nothing again. A table that is un-parked and parked anew is told anew.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemark.config import PipelineConfig
from tidemark.errors import Move
from tidemark.ledger.connection import connect


def announce_parked(config: PipelineConfig, *, ledger: str, tell: Callable[[str], None]) -> list[str]:
    """Call `tell` with a message per newly parked table, and return the messages. Raises what `tell` raises."""
    with connect(ledger) as connection, connection.transaction():
        parked = connection.execute(
            'UPDATE tidemark.tables SET notified_at = clock_timestamp() WHERE pipeline = %s AND state = \'parked\' '
            'AND (notified_at IS NULL OR notified_at < state_since) RETURNING "table", error',
            (config.pipeline,),
        ).fetchall()
        messages = [_message(config, table, error) for table, error in sorted(parked, key=lambda row: str(row[0]))]
        for message in messages:
            tell(message)
    return messages


def _message(config: PipelineConfig, table: str, error: dict[str, str]) -> str:
    if error["move"] == Move.RETRY:
        next_step = f"It is tried again every {config.bounds.unpark_retry_s} s; the other tables go on."
    else:
        next_step = (
            f"Its changes are staged meanwhile and the other tables go on. Then: python -m tidemark unpark {config.path} {table}"
        )
    return f"Table {table} of pipeline {config.pipeline} was parked ({error['kind']}): {error['message']} {next_step}"
