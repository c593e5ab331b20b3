"""Runs a person's action on one table, from the command line or the page: un-park, pause, resume, forget.

A table is given as its id or as `schema.table`. Each function returns the sentence to show, and whether something was
done. It raises TableUnknown for a name that the pipeline does not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidemark.capture import lake_folder
from tidemark.capture.definitions import evolve_decisions
from tidemark.config import PipelineConfig
from tidemark.errors import DefinitionFrozen, TableUnknown
from tidemark.findings import listed
from tidemark.formats import layout
from tidemark.ledger import migrations
from tidemark.ledger.captured import (
    definition_changes,
    joins,
    merge_states,
    relation_ids,
    successors,
    tables,
)
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.observations import overview
from tidemark.ledger.staged import generations
from tidemark.names import TableName
from tidemark.storage.store import Store
from tidemark.wording import TABLE_CUTOFF, closest

# A message lists at most so many tables.
NAMES: Final = 20


def unpark(
    config: PipelineConfig, table: str, *, ledger: str, anew: bool = False, who: str | None = None
) -> tuple[str, bool]:
    """Unpark a table; returns the sentence to show, and whether something was done.

    With `anew` it begins with new Delta tables and skips its staged changes; the old Delta tables must be gone. A table
    that was stopped because its definition changed goes on with the new definition: `who` accepts it.
    """
    with _ledger_and_row(config, table, ledger) as (book, row):
        if not row.life.is_parked:
            return f"{table} is not parked (it is {row.life.merge}).", False
        if anew:
            return _begin_anew(config, book, row.table)
        kind = None if row.error is None else row.error.kind
        if kind == DefinitionFrozen.__name__ and config.evolves(relation_ids.name_of(book, row.table)) == "freeze":
            return f"The file says `evolve: freeze` for {row.table}: nothing was done.", False
        with book.transaction():
            if kind in evolve_decisions.KINDS:
                definition_changes.accept(book, row.table, who)
            merge_states.unpark(book, row.table)
        return f"{table} is no longer parked; the next run applies all of its staged batches in order.", True


def _begin_anew(config: PipelineConfig, ledger: Ledger, table: str) -> tuple[str, bool]:
    """Check the lake, since nothing can begin anew beside existing tables. Raises what `lake_folder.require`
    raises: in a lake that is not mounted every table seems to be gone."""
    name = TableName.parse(table)
    folders = (layout.history_table(config.pipeline, name), layout.current_table(config.pipeline, name))
    store = Store(config.lake, config.lake_access)
    lake_folder.require(config, store, generations.required(ledger))
    existing = [folder for folder in folders if lake_folder.has_delta_table(store, folder)]
    if existing:
        return f"Nothing was done. First remove {' and '.join(existing)} from {config.lake}.", False
    if not joins.restart(ledger, table):
        return f"{table} is not parked.", False
    return (
        f"{table} begins anew. Once a run of {config.pipeline}_capture is through, trigger "
        f"{config.pipeline}_backfill for it.",
        True,
    )


def pass_over(config: PipelineConfig, table: str, *, ledger: str) -> tuple[str, bool]:
    """Unpark a table whose staged files are lost, and skip all of its staged changes. Both Delta tables stay, and a
    backfill repairs `current`. A table without replica identity has only `history`, which no backfill can repair."""
    with _ledger_and_row(config, table, ledger) as (book, row):
        name = row.table
        versions = tables.versions(book, row.table)
        if versions and not versions[-1].has_current:
            return (
                f"Nothing was done. {name} has only history, which no backfill can repair: unpark it with --anew.",
                False,
            )
        if not joins.pass_over(book, row.table):
            return f"{name} is not parked.", False
    return (
        f"{name} goes on after all of its staged changes. Once a run of {config.pipeline}_capture is through, trigger "
        f"{config.pipeline}_backfill for it. Its history lacks the changes that were passed over.",
        True,
    )


def pause(config: PipelineConfig, table: str, *, ledger: str, who: str) -> tuple[str, bool]:
    """Stop merging the table until a person resumes it; `who` is shown with it. The slot, the drain and the other
    tables go on."""
    with _ledger_and_row(config, table, ledger) as (book, row):
        name = row.table
        with book.transaction():
            tables.lock(book, [row.table])  # or a merge could park it between the question and the pause
            locked = tables.one(book, row.table)
            assert locked is not None
            if locked.life.is_parked:
                return f"{name} is parked, so it is not merged anyway. To go on with it: unpark.", False
            if not merge_states.pause(book, row.table, who):
                return f"{name} is paused already, by {locked.paused_by}.", False
        return (
            f"{name} is paused: its changes are staged, and the next plan leaves it out. A merge that runs now may "
            "still apply what it holds. To go on: resume.",
            True,
        )


def resume(config: PipelineConfig, table: str, *, ledger: str) -> tuple[str, bool]:
    """Let the next run apply all staged changes of a paused table."""
    with _ledger_and_row(config, table, ledger) as (book, row):
        shape = successors.all_of(book).get(row.table)
        if shape is not None:
            merge_states.resume(book, shape.before)  # it was paused when this shape of it began
        if not merge_states.resume(book, row.table):
            state = "parked; to go on with it: unpark" if row.life.is_parked else row.life.merge
            return f"{row.table} is not paused (it is {state}).", False
        return f"{row.table} is resumed; the next run applies all of its staged batches in order.", True


def forget(config: PipelineConfig, table: str, *, ledger: str) -> tuple[str, bool]:
    """Hide a table that is no longer captured. Its Delta tables and its ledger rows stay, so it can come back: it
    then joins as a table that was away, and needs a backfill."""
    with _ledger_and_row(config, table, ledger) as (book, row):
        name = TableName.parse(row.table)
        called = relation_ids.name_of(book, row.table)
        entry = next((rule for rule in config.tables if rule.exact and rule.matches(called)), None)
        if entry is not None:
            return f"The file names {row.table} in line {entry.line}: take it out first.", False
        if row.life.is_captured:
            return (
                f"{row.table} is captured. Take it out of the file, or drop it at the source; once a run of "
                f"{config.pipeline}_capture is through it can be forgotten.",
                False,
            )
        status = overview.read(book)
        waiting = 0 if status is None else sum(t.waiting_batches for t in status.tables if t.table == row.table)
        if waiting and row.life.is_merged:
            return (
                f"{row.table} has staged changes that are not merged yet: let the next run merge them.",
                False,
            )
        joins.forget(book, row.table)
        folders = f"{layout.current_table(config.pipeline, name)} and {layout.history_table(config.pipeline, name)}"
        left = " Its staged changes will not be merged unless it comes back." if waiting else ""
        return f"{row.table} is forgotten. Its Delta tables {folders} stay in {config.lake}.{left}", True


@contextmanager
def _ledger_and_row(config: PipelineConfig, table: str, conninfo: str) -> Iterator[tuple[Ledger, TableRow]]:
    with open_ledger(conninfo, config.pipeline) as ledger:
        migrations.require(ledger.connection)
        yield ledger, row_of(ledger, config, table)


def row_of(ledger: Ledger, config: PipelineConfig, table: str) -> TableRow:
    """The row of the captured table with this name at the source, or else of the table with this id, with its place
    (`shop.orders~1`) if another table has the name. Raises TableUnknown, which lists the existing ones."""
    rows = [row for row in tables.all_of(ledger) if row.life.is_listed]
    called = relation_ids.names(ledger)
    captured = {str(called.get(row.table, row.table)): row for row in rows if row.life.is_captured}
    by_place = {TableName.parse(row.table).exact: row for row in rows}
    for spelling in (table, _spelled(table)):
        for named_rows in (captured, {row.table: row for row in rows}, by_place):
            if (row := named_rows.get(spelling)) is not None:
                return row
    known = [row.table for row in rows]
    meant = closest(table, known, cutoff=TABLE_CUTOFF)
    hint = f" (did you mean {meant}?)" if meant else ""
    raise TableUnknown(pipeline=config.pipeline, table=table + hint, known=listed(known, limit=NAMES) or "none yet")


def _spelled(table: str) -> str:
    try:
        return str(TableName.parse(table))
    except ValueError:
        return table
