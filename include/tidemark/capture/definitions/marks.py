"""Converts differences of a table's definition to marks of the manifest: parked, or needs a backfill (R6, R8)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from functools import partial
from typing import Final

from tidemark.errors import KeyValueMissing, KeyValueUnfit, Move, SchemaNotFollowed, TidemarkError
from tidemark.findings import listed
from tidemark.formats.manifest import TableMark
from tidemark.names import TableName
from tidemark.schema.evolution import STOPS, Difference, Verdict, columns_of, compare_fingerprints, reasons
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import TableSchema
from tidemark.source.catalogue.source_tables import CatalogRelation

# The kind of `needs_backfill` that stands for a difference found in stream or catalogue.
SOURCE_CHANGED: Final = "source_changed"
# That of a table which its errors keep out of the capture.
PASSED_OVER: Final = "passed_over"

# Why a table is built anew whose rows had NULL where it has its key now.
KEY_CAME_LATER: Final = "rows from before it had its key have NULL in columns of it"


def marks_of(table: TableName, differences: Iterable[Difference]) -> list[TableMark]:
    """The marks of these differences, at most one per verdict. Differences that are followed leave none."""
    collected = list(differences)
    marks = []
    if reason := reasons(collected, *STOPS):
        marks.append(park(table, SchemaNotFollowed(table=table, difference=reason)))
    if reason := reasons(collected, Verdict.NEEDS_BACKFILL):
        marks.append(needs_backfill(table, reason, columns=columns_of(collected)))
    return marks


def needs_backfill(
    table: TableName | str, reason: str, *, kind: str = SOURCE_CHANGED, columns: tuple[int, ...] = ()
) -> TableMark:
    """The mark of a table whose rows have to be read again, in these columns alone if there are any."""
    return TableMark(
        table=str(table),
        state="needs_backfill",
        kind=kind,
        move=Move.BACKFILL.value,
        message=reason,
        columns=columns,
    )


def key_error(table: TableName, unfit: Iterable[str], null: Collection[str]) -> TidemarkError:
    """The error of a table whose key has values that do not fit in some columns, or NULL in the columns `null`."""
    if null:
        return KeyValueMissing(table=table, columns=", ".join(null))
    return KeyValueUnfit(table=table, columns=", ".join(unfit))


def park(table: TableName, error: TidemarkError) -> TableMark:
    return TableMark(
        table=str(table), state="parked", kind=type(error).__name__, move=error.move.value, message=str(error)
    )


def withheld_marks(table: TableName, reason: str) -> list[TableMark]:
    """The mark of a table whose changes this batch leaves out, because a mask matches none of its columns."""
    return [needs_backfill(table, f"its changes are not staged: {reason}", kind=PASSED_OVER)]


def key_not_valid(table: TableName) -> TableMark:
    """The mark of a root with a key that does not hold in all partitions yet. From PostgreSQL 18 on, the stream uses
    that key, and several rows with one key would become one row of current."""
    reason = "its key does not hold in all of its partitions yet, so that rows of one key may be several"
    return needs_backfill(table, reason)


def leaves_without_wal_mark(table: TableName, leaves: Iterable[CatalogRelation]) -> TableMark:
    """The mark of a root with leaves that are unlogged or foreign tables. Each drain sets it again while it lasts, so
    that a backfill does not clear it."""
    which = listed(f"{leaf.table} is {leaf.without_wal}" for leaf in leaves)
    return needs_backfill(table, f"changes of some partitions are in no write-ahead log: {which}")


def passed_over_marks(tables: Iterable[str]) -> list[TableMark]:
    """The marks of tables that were captured before and whose changes are not staged while preflight reports errors."""
    reason = "preflight found errors of it, and its changes are not staged while they hold"
    return [needs_backfill(table, reason, kind=PASSED_OVER) for table in tables]


def catalogue_marks(
    now: Mapping[str, Fingerprint],
    before: Mapping[str, Fingerprint],
    missing: Iterable[str],
    latest: Callable[[TableName], TableSchema | None] = lambda _: None,
    told: Container[str] = (),
) -> list[TableMark]:
    """The marks for differences between the ledger's fingerprints and those of this run. `missing` are captured tables
    that the catalogue does not have any more. `latest` returns the last version that the stream brought of a table.
    For the tables in `told`, the event trigger wrote definitions into the stream."""
    marks = []
    for table_id, fingerprint in now.items():
        if table_id in before and before[table_id] != fingerprint:
            table = TableName.parse(table_id)
            streamed, is_told = partial(latest, table), table_id in told
            differences = compare_fingerprints(before[table_id], fingerprint, streamed, told=is_told)
            marks += marks_of(table, differences)
    reason = "the table is not at the source any more, or the pipeline file does not name it"
    return marks + [needs_backfill(table_id, reason) for table_id in missing]
