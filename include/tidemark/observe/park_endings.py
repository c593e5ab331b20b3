"""Lists the commands with which a person ends the park of a table, by the error for which it is parked (R6)."""

from __future__ import annotations

import json
from shlex import quote

from tidemark.config import PipelineConfig
from tidemark.errors import BEGIN_ANEW, FOLLOW, PASS_OVER, REBUILD, REPLAY, Move, leaf_of
from tidemark.formats import layout
from tidemark.formats.error_record import ErrorRecord
from tidemark.names import TableName
from tidemark.wording import duration


def unpark_command(config: PipelineConfig, table: str) -> str:
    return f"tidemark unpark {quote(config.path)} {quote(table)}"


def ending_commands(config: PipelineConfig, table: str, error: ErrorRecord) -> list[str]:
    """One line with commands for each way in which the error's remedy ends the park."""
    unpark = unpark_command(config, table)
    if error.move == Move.RETRY:
        again = duration(config.bounds.unpark_retry_s)
        return [f"It is tried again {again} after the last time; to have the next run try it: {unpark}"]
    conf = quote(json.dumps({"tables": [table]}))
    backfill = f"airflow dags trigger {config.pipeline}_backfill --conf {conf}"
    goes_on, begins_anew = _offered(error)
    leaf = leaf_of(error.kind)
    remedy = "" if leaf is None else leaf.remedy
    behind = f"then let a run of {config.pipeline}_capture end; then: {backfill}"
    ways = []
    if FOLLOW in remedy:
        ways.append(
            f"To follow the change: {_followed(config, table)}; the next run of {config.pipeline}_capture goes on"
        )
    if goes_on:
        then = f"; then: {backfill}" if error.move == Move.BACKFILL else ""
        label = "To go on with its Delta tables, once they fit" if begins_anew else "After that"
        ways.append(f"{label}: {unpark}{then}")
    if REBUILD in remedy:
        form = quote(json.dumps({"step": "rebuild", "tables": [table]}))
        ways.append(
            f"If current alone was lost: airflow dags trigger {config.pipeline}_replay --conf {form}; then: {unpark}"
        )
    if REPLAY in remedy:
        form = quote(json.dumps({"step": "staged", "tables": [table]}))
        ways.append(f"If history lost its newest commits: airflow dags trigger {config.pipeline}_replay --conf {form}")
    if PASS_OVER in remedy:
        ways.append(f"To pass over what is staged of it: {unpark} --past; {behind}")
    if begins_anew:
        name = TableName.parse(table)
        both = f"{layout.history_table(config.pipeline, name)} and {layout.current_table(config.pipeline, name)}"
        ways.append(f"To begin anew, once {both} are removed from {config.lake}: {unpark} --anew; {behind}")
    return ways


def brief_ending(config: PipelineConfig, table: str, error: ErrorRecord) -> str:
    """The same, short enough for a line with other text."""
    unpark = unpark_command(config, table)
    if error.move == Move.RETRY:
        return f"It is tried again by itself; at once: {unpark}"
    leaf = leaf_of(error.kind)
    if leaf is not None and FOLLOW in leaf.remedy:
        return f"To go on by itself: {_followed(config, table)}"
    goes_on, _ = _offered(error)
    return f"Mend that, then: {unpark}" if goes_on else f"Begin it anew: remove its Delta tables, then {unpark} --anew"


def _followed(config: PipelineConfig, table: str) -> str:
    """The change to make, so that the pipeline follows the table's new definition. Under `evolve: follow` only names
    and the key prevent it."""
    if config.evolves(TableName.parse(table)) == "follow":
        return "rename its columns at the source, or capture its key"
    return f"write `evolve: follow` for it in {config.path}"


def _offered(error: ErrorRecord) -> tuple[bool, bool]:
    """Whether the error's remedy continues the Delta tables, and whether it begins them anew. For an error that this
    version of Tidemark does not have, it continues them."""
    leaf = leaf_of(error.kind)
    begins_anew = leaf is not None and BEGIN_ANEW in leaf.remedy
    return leaf is None or not begins_anew or "unpark" in leaf.remedy.replace(BEGIN_ANEW, ""), begins_anew
