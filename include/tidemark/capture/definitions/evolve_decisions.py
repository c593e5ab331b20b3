"""Decides by `evolve` of the pipeline file which tables with a changed definition are merged no further (R6).

    follow   every change that can be followed is (`schema.evolution`)
    ask      a change of the definition parks the table until a person continues it
    freeze   the same, and nobody can continue it while the file has `freeze`

The decision is made when a merge is planned, not when the change is staged. So it also covers a change that a
backfill's reader met before the stream had it. Staged files stay. The slot and the other tables go on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tidemark.config import PipelineConfig
from tidemark.errors import DefinitionFrozen, DefinitionUndecided, TidemarkError
from tidemark.ledger.captured import definition_changes, merge_states, relation_ids, schema_versions, tables
from tidemark.ledger.captured.definition_changes import Decision, DefinitionEvidence
from tidemark.ledger.connection import Ledger
from tidemark.ledger.staged import batches
from tidemark.ledger.staged.batches import TouchedTable
from tidemark.names import TableName
from tidemark.schema.evolution import compare_schemas
from tidemark.schema.table import TableSchema

log = logging.getLogger(__name__)

_STOPS: Final[dict[str, tuple[Decision, type[TidemarkError]]]] = {
    "freeze": ("frozen", DefinitionFrozen),
    "ask": ("asked", DefinitionUndecided),
}
KINDS: Final = frozenset(error.__name__ for _, error in _STOPS.values())


def hold(ledger: Ledger, config: PipelineConfig) -> list[str]:
    """Park every table whose next merge would follow a change that `evolve` forbids, and unpark those that may go on
    now. Returns the parked tables."""
    held = []
    names = relation_ids.names(ledger)
    for row in tables.all_of(ledger):
        mode = config.evolves(names.get(row.table, TableName.parse(row.table)))
        if row.life.is_parked and row.error is not None and row.error.kind in KINDS and mode == "follow":
            with ledger.transaction():
                if definition_changes.accept(ledger, row.table, None) and merge_states.unpark(ledger, row.table):
                    log.info("%s is merged again: the pipeline file says that it follows", row.table)
        elif row.life.is_merged and mode in _STOPS:
            touches = batches.unapplied(ledger, names=[row.table])
            held += [row.table] * _is_stopped(ledger, row.table, touches, mode)
    return held


def allowed(
    ledger: Ledger, config: PipelineConfig, todo: Mapping[str, Sequence[TouchedTable]]
) -> dict[str, Sequence[TouchedTable]]:
    """The planned tables without those that `hold` parks: another run may have staged a change of a definition
    meanwhile."""
    names = relation_ids.names(ledger)
    return {
        table: touches
        for table, touches in todo.items()
        if (mode := config.evolves(names.get(table, TableName.parse(table)))) not in _STOPS
        or not _is_stopped(ledger, table, touches, mode)
    }


def _is_stopped(ledger: Ledger, table: str, touches: Sequence[TouchedTable], mode: str) -> bool:
    decided, stop = _STOPS[mode]
    numbers = {file.schema_version for touched in touches for file in touched.files}
    numbers |= {file.schema_version for touched in touches for claim in touched.claims for file in claim.files}
    versions = tables.versions(ledger, table)
    base = schema_versions.merged(ledger, table) or (versions[0] if versions else None)
    if base is None:
        return False
    newest = max(base.version, definition_changes.accepted(ledger, table))
    coming = [v for v in versions if v.version in numbers and v.version > newest and not v.same_shape(base)]
    if not coming:
        return False
    reason = _differences(base, coming)
    error = stop(table=table, difference=reason)
    with ledger.transaction():
        at = touches[0]
        definition_changes.add(
            ledger, table, DefinitionEvidence(at.generation, at.start_lsn, base, coming[-1]), decided, reason
        )
        merge_states.park(ledger, table, error.record())
    log.warning("%s", error)
    return True


def _differences(base: TableSchema, coming: Iterable[TableSchema]) -> str:
    """The differences between the target's definition and the last one, as one text: a person decides about all of
    them."""
    last = list(coming)[-1]
    gone = [column.name for column in base.columns if base.column_in(last, column) is None]
    return "; ".join(dict.fromkeys(one.reason for one in compare_schemas(base, last, gone))) or "it came back as it was"
