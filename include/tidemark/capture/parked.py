"""A parked table's error -> what ends the park (R6)."""

from __future__ import annotations

import json
from shlex import quote

from tidemark.config import PipelineConfig
from tidemark.errors import BEGIN_ANEW, Move, leaf_of
from tidemark.formats import layout
from tidemark.formats.error_record import ErrorRecord
from tidemark.names import TableName
from tidemark.wording import duration


def unpark_command(config: PipelineConfig, table: str) -> str:
    return f"tidemark unpark {quote(config.path)} {quote(table)}"


def ways_on(config: PipelineConfig, table: str, error: ErrorRecord) -> list[str]:
    """What ends the park, one line for each way that the error's remedy offers, with its commands."""
    unpark = unpark_command(config, table)
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
