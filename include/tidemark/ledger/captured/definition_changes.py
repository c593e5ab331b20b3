"""Records the decision about each change of a table's definition: both definitions, the batch's LSN, and the time.

    a batch is registered   each version of a table that its changes bring, and each mark ──► followed | marked | parked
                            each shape that begins beside another (`ledger.captured.successors`)      ──► rebuilt
    a merge is planned      a table that may not follow by itself (`evolve_decisions`)    ──► frozen | asked
    a person un-parks it                                                        ──► accepted

People read these rows. The next plan reads `accepted`: it follows that version and the earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from psycopg.types.json import Jsonb

from tidemark.formats.manifest import BatchManifest, TableMark
from tidemark.ledger.captured import tables
from tidemark.ledger.connection import Ledger
from tidemark.lsn import Lsn
from tidemark.schema.evolution import compare_schemas
from tidemark.schema.table import TableSchema

Decision = Literal["followed", "marked", "parked", "frozen", "asked", "accepted", "rebuilt"]

# The kinds of marks that a change of the definition leaves (`capture.definitions.marks`).
_OF_DEFINITIONS: Final = ("source_changed", "SchemaNotFollowed")

MOST: Final = 50


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """`before` and `after` are version numbers; None if only the catalogue had the change."""

    table: str
    lsn: Lsn
    decided: Decision
    reason: str
    before: int | None
    after: int | None
    decided_by: str | None
    decided_at: datetime


@dataclass(frozen=True, slots=True)
class DefinitionEvidence:
    """The batch that had a change, and both definitions; None if only the catalogue had them."""

    generation: int
    lsn: Lsn
    before: TableSchema | None = None
    after: TableSchema | None = None


def of_batch(ledger: Ledger, manifest: BatchManifest, new: Iterable[TableSchema]) -> None:
    """Record the decisions of the batch's drain; `new` are the versions that no earlier batch had changes of."""
    versions = sorted(new, key=lambda schema: schema.version)
    marks = {mark.table: mark for mark in manifest.marks if mark.kind in _OF_DEFINITIONS}
    older = tables.versions_of(ledger, {str(schema.table) for schema in versions}, only_streamed=True)
    told = set()
    for schema in versions:
        table = str(schema.table)
        before = [version for version in older.get(table, ()) if version.version < schema.version]
        if not before:
            continue  # the first definition changes nothing
        mark = None if table in told else marks.get(table)
        told.add(table)
        reason = _reason(before[-1], schema) if mark is None else mark.message
        shown = DefinitionEvidence(manifest.generation, manifest.start_lsn, before[-1], schema)
        add(ledger, table, shown, _decided(mark), reason)
    for table, mark in marks.items():
        if table not in told:
            add(
                ledger, table, DefinitionEvidence(manifest.generation, manifest.start_lsn), _decided(mark), mark.message
            )


def _decided(mark: TableMark | None) -> Decision:
    if mark is None:
        return "followed"
    return "parked" if mark.state == "parked" else "marked"


def _reason(before: TableSchema, after: TableSchema) -> str:
    gone = [column.name for column in before.columns if before.column_in(after, column) is None]
    reasons = [difference.reason for difference in compare_schemas(before, after, gone)]
    return "; ".join(reasons) or "nothing that is seen in the target"


def add(ledger: Ledger, table: str, shown: DefinitionEvidence, decided: Decision, reason: str) -> None:
    """Record a decision that no person made."""
    ledger.insert(
        "definition_changes",
        table=table,
        generation=shown.generation,
        lsn=shown.lsn,
        decided=decided,
        reason=reason,
        before=_json(shown.before),
        after=_json(shown.after),
    )


def _json(schema: TableSchema | None) -> Jsonb | None:
    return None if schema is None else Jsonb(schema.to_json())


def accept(ledger: Ledger, table: str, who: str | None) -> bool:
    """Follow the change that stopped the table last. False if none did."""
    return ledger.holds(
        """
        INSERT INTO tidemark.definition_changes
               (pipeline, "table", generation, lsn, decided, reason, before, after, decided_by)
        SELECT pipeline, "table", generation, lsn, 'accepted', reason, before, after, %s
          FROM tidemark.definition_changes
         WHERE pipeline = %s AND "table" = %s AND decided IN ('frozen', 'asked') ORDER BY number DESC LIMIT 1
        RETURNING number
        """,
        (who, ledger.pipeline, table),
    )


def accepted(ledger: Ledger, table: str) -> int:
    """The newest version that a person accepted; 0 if there is none."""
    (newest,) = ledger.row(
        "SELECT coalesce(max((after ->> 'version')::int), 0) FROM tidemark.definition_changes "
        "WHERE pipeline = %s AND \"table\" = %s AND decided = 'accepted'",
        (ledger.pipeline, table),
    )
    return int(newest)


def of_table(ledger: Ledger, table: str) -> tuple[DefinitionChange, ...]:
    """The newest `MOST` changes of one table, newest first."""
    return _read(ledger, '"table" = %s', (table,))


def newest(ledger: Ledger, limit: int) -> tuple[DefinitionChange, ...]:
    """The newest changes of all tables, newest first."""
    return _read(ledger, "true", (), limit)


def between(ledger: Ledger, table: str, generation: int, start: Lsn | None, end: Lsn) -> tuple[DefinitionChange, ...]:
    """The changes in batches of `[start, end)` of the generation, newest first."""
    within = '"table" = %s AND generation = %s AND lsn >= %s AND lsn < %s'
    return _read(ledger, within, (table, generation, start or Lsn(0), end))


def _read(ledger: Ledger, which: str, values: tuple[Any, ...], limit: int = MOST) -> tuple[DefinitionChange, ...]:
    rows = ledger.execute(
        f"""
        SELECT "table", lsn, decided, reason, (before ->> 'version')::int, (after ->> 'version')::int, decided_by,
               decided_at
          FROM tidemark.definition_changes WHERE pipeline = %s AND {which} ORDER BY number DESC LIMIT {limit}
        """.encode(),
        (ledger.pipeline, *values),
    )
    return tuple(DefinitionChange(*row) for row in rows)
