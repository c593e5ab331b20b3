"""Derives the tables that need a backfill now from the ledger, with the rows and columns to read.

    marked, and not being read                       the whole table
    marked for some columns alone                    these columns and the key, of all rows
    marked for holes alone, and their keys are kept  exactly those keys
    marked for changes that the source lost, whose
    keys are recorded                                exactly those keys; rows that the source lacks are removed
    an open backfill with unread ranges,
    and not being read                               that backfill continues

Requests are not stored but derived from these facts each time, so none can be lost. These tables are left out:

- a parked or uncaptured table, whose chunks could not be merged;
- a table that a merge builds from staging;
- a table without replica identity whose history has rows of a backfill, because after an altered column every row
  would count as new;
- a table that PostgreSQL could not read, until it is marked again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tidemark.formats.merge_result import MAX_HOLE_KEYS
from tidemark.ledger import migrations
from tidemark.ledger.captured import backfill_marks, relation_ids, successors, tables
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.reading import backfills, chunks
from tidemark.ledger.reading.backfills import Backfill, Key, Mode
from tidemark.run import Run
from tidemark.schema import table_life


@dataclass(frozen=True, slots=True)
class RequestedTable:
    """One table that needs a backfill. `keys` are the keys to read in mode keys; they are values of rows and must
    not be logged. `reason` is half a sentence. `columns` are the numbers of the columns to read besides the key,
    None for all. `builds`: the capture builds the table beside another one, because
    `evolve` is `follow` for it. Then its backfill starts by itself too."""

    table: str
    mode: Mode
    keys: tuple[Key, ...] = field(repr=False)
    reason: str
    columns: tuple[int, ...] | None = None
    builds: bool = False


def requested_tables(run: Run, *, quiet_s: float = 0.0) -> list[RequestedTable]:
    """The tables that need a backfill now, by table.

    A table whose join was not judged by a capture run yet, for example after it was begun anew, is left out. So are
    tables with a backfill that was begun, adopted or read in the last `quiet_s` seconds, so that a run that fails at
    once is not repeated at once.
    """
    with open_ledger(run.ledger, run.pipeline) as book:
        migrations.require(book.connection)
        quiet = backfills.tables_tried_within(book, quiet_s)
        left_alone = quiet.union(backfills.unreadable(book))
        rows = [row for row in tables.all_of(book) if row.life.may_be_backfilled and row.table not in left_alone]
        needs = [_of(book, row) for row in rows]
        building = _building(book, run)
    return [replace(one, builds=one.table in building) for one in needs if one is not None]


def _building(ledger: Ledger, run: Run) -> set[str]:
    """The tables that the capture builds beside others."""
    names = relation_ids.names(ledger)
    return {
        row.table
        for row in tables.all_of(ledger)
        if successors.is_built_by_capture(row, relation_ids.name_in(names, row.table), run.config.evolves)
    }


def _of(ledger: Ledger, row: TableRow) -> RequestedTable | None:
    open_backfill = backfills.open_of(ledger, row.table)
    if open_backfill is not None:
        return _continued(ledger, open_backfill)
    if not row.life.needs_backfill or row.backfill_kind == backfill_marks.REPLAYED or _has_been_read(ledger, row):
        return None
    reason = row.backfill_reason or ""
    if row.lost_keys:
        return RequestedTable(row.table, "keys", tuple(tuple(key) for key in row.lost_keys), reason)
    keys = tuple(tuple(key) for key in row.hole_keys)
    if row.life.target == table_life.HOLES and 0 < len(keys) < MAX_HOLE_KEYS:
        return RequestedTable(row.table, "keys", keys, reason)
    columns = None if row.columns_in_doubt is None else tuple(row.columns_in_doubt)
    return RequestedTable(row.table, "chunks", (), reason, columns)


def _continued(ledger: Ledger, backfill: Backfill) -> RequestedTable | None:
    """The request to continue an open backfill; None if it is read completely or has a live reader."""
    if chunks.all_read(ledger, backfill.backfill) or chunks.live_reader(ledger, backfill.backfill):
        return None
    keys = tuple(
        key
        for key_range in chunks.ranges_of(ledger, backfill.backfill)
        if not key_range.done
        for key in key_range.keys or ()
    )
    return RequestedTable(
        backfill.table, backfill.mode, keys, f"its backfill {backfill.backfill} is not finished, and nobody reads it"
    )


def _has_been_read(ledger: Ledger, row: TableRow) -> bool:
    """Whether the table has history only, and a backfill of it was read before."""
    if row.fingerprint is None or row.fingerprint["key"] or row.fingerprint["identity"] == "full":
        return False
    return chunks.has_read_rows(ledger, row.table)
