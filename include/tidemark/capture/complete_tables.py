"""Computes the tables that a plan completes, for `_positions`, and completes the swaps of their ids.

The staged position is read first, and the waiting tables afterwards. A batch that is registered in between makes its
tables wait, so no table is recorded as complete while it lacks a change.

A table that is built next to another one has no name for readers until it has all rows. Then one commit of `_positions`
gives it the name, at a higher position than the other table ever had there. The other table is put aside.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from tidemark.capture.definitions.successor_shapes import is_parked_for_its_shape
from tidemark.formats.merge_plan import MergePlan, StagedLevel
from tidemark.formats.merge_result import PlanResult
from tidemark.ledger.captured import backfill_marks, merge_states, put_aside, relation_ids, successors, tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.staged import batches, positions
from tidemark.ledger.staged.batches import TouchedTable
from tidemark.ledger.staged.generations import Generation

log = logging.getLogger(__name__)


def level_of_plan(ledger: Ledger, opened: Generation, planned: Mapping[str, Sequence[TouchedTable]]) -> StagedLevel:
    """The level of a plan, for `_positions`.

    `opened`, the open generation, was read before the plan's batches were listed. `planned` are the plan's tables, with
    all their waiting batches in its generation. A table that the plan replays is complete once the plan is applied.
    """
    captured = {row.table: row for row in tables.all_of(ledger) if row.life.is_captured}
    waiting = batches.unapplied_counts(ledger, captured)
    level = [table for table in captured if table not in waiting and table not in planned]
    promised = {table for table, row in captured.items() if row.life.keeps_its_promise and row.life.can_be_read}
    promised |= {
        table
        for table, touches in planned.items()
        if table in captured
        and (row := captured[table]).backfill_kind == backfill_marks.REPLAYED
        and row.life.can_be_read
        and touches[0].generation == opened.number
    }
    called = relation_ids.names(ledger)
    nameless = (successors.unplaced(ledger) - promised) | ({*level, *planned} - captured.keys())
    names = {table: None if table in nameless else str(called.get(table, table)) for table in {*level, *planned}}
    return StagedLevel(
        generation=opened.number,
        lsn=opened.staged_lsn,
        committed_at=None if opened.last_committed_at is None else opened.last_committed_at.isoformat(),
        tables=tuple(level),
        inexact=tuple(sorted({*level, *planned} - promised)),
        names={table: name for table, name in sorted(names.items()) if name != table},
    )


def awaiting_their_name(ledger: Ledger) -> set[str]:
    """The tables that were built next to others, have all rows, and whose new name no plan has recorded. If nothing
    else is to be merged, a plan without tables records it."""
    unplaced = successors.unplaced(ledger)
    rows = (row for row in tables.all_of(ledger) if row.table in unplaced) if unplaced else ()
    whole = {row.table for row in rows if row.life.keeps_its_promise and row.life.can_be_read}
    return whole - batches.unapplied_counts(ledger, whole).keys() if whole else whole


def record_names(ledger: Ledger, plan: MergePlan) -> None:
    """Record the tables that get their name by the plan, among those that were built next to others."""
    level = plan.level
    if level is not None and level.generation == plan.generation:
        successors.record_naming(
            ledger, plan.plan, [table for table, called in level.names.items() if called is not None]
        )


def place_complete_tables(ledger: Ledger, result: PlanResult) -> None:
    """Complete the replacement of tables once the plan's level is in `_positions`. The tables that readers used
    until then are put aside, and the unfinished ones that were given up. Changes that wait for a table that is
    parked for its shape fit no table, and are skipped."""
    if not result.noted:
        return
    for table in successors.complete(ledger, result.plan, [t.table for t in result.tables if t.error is not None]):
        log.info("%s has all rows, and replaces the table that it was built beside", table)
        called = relation_ids.name_of(ledger, table)
        for shape in successors.replaced_by(ledger, table):
            tables.lock(ledger, [shape.before])
            row = tables.one(ledger, shape.before)
            if row is not None and is_parked_for_its_shape(row):
                merge_states.unpark(ledger, shape.before)
                positions.skip_staged(ledger, shape.before)
            put_aside.note(ledger, shape.before, called, shape.begun_lsn)
