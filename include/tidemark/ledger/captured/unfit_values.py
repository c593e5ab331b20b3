"""Counts the values of each column that its Delta type could not hold (R8), for as long as the lake lacks them.

A count rises with the batch that brings the values: changes, or a backfill's chunks. It stays when staging is cleaned
up. It ends when all rows are read again or the source truncates the table. A table that begins anew has another id, and
a column that is dropped takes its count along.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tidemark.formats.manifest import StagedFile, TableChanges
from tidemark.formats.snapshot import Snapshot
from tidemark.ledger.captured import tables
from tidemark.ledger.connection import Ledger
from tidemark.lsn import Lsn
from tidemark.schema.table import TableSchema

# In place of a version: the names are those of the newest one.
_NEWEST: Final = 2**31 - 1


def add(ledger: Ledger, touched: Iterable[TableChanges]) -> None:
    """Add the counts of a batch that the caller registers in this transaction. A verify reads values that the lake
    already has, so its chunks only count what exceeds the present count."""
    for changes in touched:
        if changes.counts.get("truncate"):
            ledger.execute(
                'DELETE FROM tidemark.unfit_values WHERE pipeline = %s AND "table" = %s',
                (ledger.pipeline, changes.table),
            )
        _count(ledger, changes.table, _version(changes.files), changes.converted)
        for claim in changes.claims:
            is_again = claim.purpose != "fill"
            _count(ledger, changes.table, _version(claim.files), claim.converted, is_again=is_again)


def restore(ledger: Ledger, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Take counts, by table and column, from a clean-up that a restored ledger does not have. A higher count of its
    own stays."""
    for table, of_table in counts.items():
        _count(ledger, table, _NEWEST, of_table, is_again=True)


def take_over(ledger: Ledger, table: str, before: str) -> None:
    """Copy the counts of the table from whose staging and history this table is built: its values are the same."""
    restore(ledger, {table: all_of(ledger).get(before, {})})


def replace(ledger: Ledger, table: str, backfill: str, snapshot: str, since: Lsn | None, generation: int) -> None:
    """Replace the counts after a backfill of all rows: its own counts remain, and those of batches whose changes
    its chunks may lack. These lie above `since` if that is given, or may be missing from the `snapshot` before the
    first chunk.

    Nothing is replaced if one of those changes moved a key without sending all values: a counted value may have moved
    with it.
    """
    unseen = """
        FROM tidemark.batch_tables
       WHERE pipeline = %(pipeline)s AND generation = %(generation)s AND "table" = %(table)s
         AND (max_xid >= %(xmin)s::bigint OR end_lsn > %(since)s::pg_lsn)
        """
    values = {
        "generation": generation,
        "table": table,
        "backfill": backfill,
        "xmin": Snapshot.parse(snapshot).xmin,
        "since": since,
    }
    moved = f"SELECT 1 {unseen} AND moved > 0 AND unchanged > 0 LIMIT 1"
    if ledger.execute(moved.encode(), values).fetchone() is not None:
        return
    ledger.execute('DELETE FROM tidemark.unfit_values WHERE pipeline = %(pipeline)s AND "table" = %(table)s', values)
    query = f"""
        SELECT files, converted {unseen} AND converted <> '{{}}'
        UNION ALL
        SELECT files, converted FROM tidemark.chunks
         WHERE pipeline = %(pipeline)s AND backfill = %(backfill)s AND rejected IS NULL AND converted <> '{{}}'
        """
    for files, converted in ledger.execute(query.encode(), values).fetchall():
        _count(ledger, table, _version(map(StagedFile.from_json, files)), converted)


def all_of(ledger: Ledger) -> dict[str, dict[str, int]]:
    """By table and present column name, the number of values that did not fit. Tables and columns without any are
    left out."""
    rows = ledger.execute(
        'SELECT "table", version, name, values FROM tidemark.unfit_values '
        'WHERE pipeline = %s ORDER BY "table", version DESC, name',
        (ledger.pipeline,),
    ).fetchall()
    versions = tables.versions_of(ledger, {table for table, *_ in rows}) if rows else {}
    counts: dict[str, dict[str, int]] = {}
    for table, version, name, values in rows:
        present = _name_now(versions.get(table, []), version, name)
        if present is not None:
            of_table = counts.setdefault(table, {})
            of_table[present] = of_table.get(present, 0) + values
    return {table: dict(sorted(of_table.items())) for table, of_table in counts.items()}


def _version(files: Iterable[StagedFile]) -> int:
    return max((file.schema_version for file in files), default=_NEWEST)


def _count(ledger: Ledger, table: str, version: int, converted: Mapping[str, int], *, is_again: bool = False) -> None:
    if not converted:
        return
    already: dict[str, int] = all_of(ledger).get(table, {}) if is_again else {}
    more = {name: count - already.get(name, 0) for name, count in converted.items()}
    ledger.execute(
        """
        INSERT INTO tidemark.unfit_values AS known (pipeline, "table", version, name, values)
        SELECT %s, %s, %s, f.* FROM unnest(%s::text[], %s::bigint[]) AS f (name, values) WHERE f.values > 0
        ON CONFLICT (pipeline, "table", version, name) DO UPDATE SET values = known.values + excluded.values
        """,
        (ledger.pipeline, table, version, list(more), list(more.values())),
    )


def _name_now(versions: list[TableSchema], version: int, name: str) -> str | None:
    """The present name of the column that had this name in this version; None if the table has it no more."""
    if not versions:
        return name
    for schema in reversed([v for v in versions if v.version <= version]):
        column = next((c for c in schema.columns if c.name == name), None)
        if column is not None:
            now = schema.column_in(versions[-1], column)
            return None if now is None else now.name
    return name
