"""Reads the details of one table that are not in its line of the overview."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.ledger.captured import definition_changes, relation_ids, tables, unfit_values
from tidemark.ledger.captured.definition_changes import DefinitionChange
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.connection import Ledger
from tidemark.ledger.observations import table_sizes
from tidemark.ledger.observations.table_sizes import DeltaTable
from tidemark.ledger.staged import batches, generations, plans, positions
from tidemark.ledger.staged.batches import RecentChanges
from tidemark.ledger.staged.plans import LastMerge
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.schema.evolution import compare_schemas, dropped_before
from tidemark.schema.table import Column, TableSchema


@dataclass(frozen=True, slots=True)
class ShapeVersion:
    """A shape of the table by its number, and its changes as half sentences with names."""

    number: int
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableDetails:
    """`unfit` maps a column to its number of values that the target type could not hold. `versions` and
    `definition_changes` are newest first. `columns` are those of the newest version, `merges` the last merges.
    `called` is the table's present or last name at the source."""

    row: TableRow
    history_lsn: Lsn | None
    current_lsn: Lsn | None
    unfit: dict[str, int]
    versions: tuple[ShapeVersion, ...]
    delta: tuple[DeltaTable, ...]
    definition_changes: tuple[DefinitionChange, ...] = ()
    merges: tuple[LastMerge, ...] = ()
    recent: RecentChanges | None = None
    columns: tuple[Column, ...] = ()
    called: TableName | None = None


def read(ledger: Ledger, table: str) -> TableDetails | None:
    """The table by its id; None if it was never captured."""
    with ledger.transaction():
        ledger.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        row = tables.one(ledger, table)
        generation = generations.current(ledger)
        if row is None or generation is None:
            return None
        position = positions.all_of(ledger, generation.number).get(table)
        versions = tables.versions(ledger, table)
        return TableDetails(
            row=row,
            history_lsn=None if position is None else position.history_lsn,
            current_lsn=None if position is None else position.current_lsn,
            unfit=unfit_values.all_of(ledger).get(table, {}),
            versions=_versions(versions),
            delta=table_sizes.all_of(ledger).get(table, ()),
            definition_changes=definition_changes.of_table(ledger, table),
            merges=plans.last_merges(ledger, table),
            recent=batches.recent_changes(ledger, generation.number, table),
            columns=versions[-1].columns if versions else (),
            called=relation_ids.name_of(ledger, table),
        )


def _versions(versions: list[TableSchema]) -> tuple[ShapeVersion, ...]:
    changes_by_version = []
    for before, schema in zip([None, *versions], versions, strict=False):
        if before is None:
            changed = [f"{len(schema.columns)} columns, {_key(schema)}"]
        else:
            dropped = dropped_before(versions[: versions.index(schema)], schema)
            differences = compare_schemas(before, schema, [column.name for column in dropped])
            changed = [difference.reason for difference in differences] or ["nothing that is seen in the target"]
        changes_by_version.append(ShapeVersion(schema.version, tuple(changed)))
    return tuple(reversed(changes_by_version))


def _key(schema: TableSchema) -> str:
    return f"key {', '.join(schema.key)}" if schema.key else "no key"
