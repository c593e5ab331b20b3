"""Computes from ingested results, or from a run's plans, per table whose position rose: LSN range, rows, lag behind
the source.

It is for people and for later readers of the tables. It does not decide what is applied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tidemark.capture.merge_planning import Ingested, IngestedTable
from tidemark.formats.merge_plan import MergePlan
from tidemark.ledger.captured import definition_changes, relation_ids, tables
from tidemark.ledger.captured.definition_changes import DefinitionChange
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.staged import batches, plans, positions
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.run import Run
from tidemark.storage.small_reads import read_ahead
from tidemark.storage.store import Store


@dataclass(frozen=True, slots=True)
class AdvancedTable:
    """A table whose applied position moved from `start_lsn` (None: it had none in this generation) to `end_lsn`.

    - `rows` are those of `formats.merge_result.TableResult`, summed.
    - `lag_s` is the seconds since the commit of the newest change in the last applied batch.
    - `definition_changes` are the decisions about its definition in between, newest first.
    - `called` is its present name at the source, or its id if it is not captured any more.
    """

    table: TableName
    called: TableName
    generation: int
    start_lsn: Lsn | None
    end_lsn: Lsn
    rows: dict[str, int]
    lag_s: float | None
    definition_changes: tuple[DefinitionChange, ...] = ()


def summed(ingested: Iterable[Ingested]) -> Ingested:
    """Many results as one, with one entry per table and generation, so that a run that follows the source for a day
    keeps little. A position only rises, so the first result has its start and the last its end."""
    together: dict[tuple[str, int], IngestedTable] = {}
    for table in (table for one in ingested for table in one.tables):
        before = together.get((table.table, table.generation))
        if before is not None:
            rows = dict(Counter(before.rows) + Counter(table.rows))
            table = replace(table, before=before.before, rows=rows, seconds=before.seconds + table.seconds)
        together[table.table, table.generation] = table
    return Ingested((), tuple(together.values()))


def merged_in_run(run: Run) -> Ingested:
    """What all tries of the run's merge brought into the tables, from the ledger. Of a try that was killed nothing
    else is left. A table's first plan says where it began; without that file it counts as if it had no position."""
    store = Store(run.config.lake, run.config.lake_access)
    with open_ledger(run.ledger, run.pipeline) as book:
        merged = plans.merged_by(book, run.run_id)
        reached = {number: positions.all_of(book, number) for number in {table.generation for table in merged}}
    paths = list(dict.fromkeys(table.first_plan for table in merged))
    began = dict(zip(paths, read_ahead(lambda path: _begins(store, path), paths), strict=True))
    return Ingested(
        (),
        tuple(
            IngestedTable(
                table.table,
                table.generation,
                before=began[table.first_plan].get(table.table),
                after=position.applied_lsn,
                rows=table.rows,
                seconds=0.0,
                error=None,
                parked=False,
            )
            for table in merged
            if (position := reached[table.generation].get(table.table)) is not None
        ),
    )


def _begins(store: Store, path: str) -> dict[str, Lsn | None]:
    try:
        return {table.table: table.after for table in MergePlan.from_json(store.read(path)).tables}
    except (FileNotFoundError, ValueError):
        return {}


def advanced(run: Run, ingested: Iterable[Ingested]) -> list[AdvancedTable]:
    """The tables whose position rose, by id. A table of several results appears once per generation."""
    advanced_tables = []
    now = run.now()
    with open_ledger(run.ledger, run.pipeline) as book:
        captured = {row.table for row in tables.all_of(book) if row.life.is_captured}
        names = {table: name for table, name in relation_ids.names(book).items() if table in captured}
        risen = Ingested((), tuple(table for one in ingested for table in one.tables if table.advanced))
        for step in sorted(summed([risen]).tables, key=lambda table: (table.table, table.generation)):
            assert step.after is not None
            last = batches.ending_at(book, step.generation, step.after)
            committed_at = None if last is None else last.last_committed_at
            advanced_tables.append(
                AdvancedTable(
                    table=TableName.parse(step.table),
                    called=names.get(step.table, TableName.parse(step.table)),
                    generation=step.generation,
                    start_lsn=step.before,
                    end_lsn=step.after,
                    rows=step.rows,
                    lag_s=None if committed_at is None else (now - committed_at).total_seconds(),
                    definition_changes=definition_changes.between(
                        book, step.table, step.generation, step.before, step.after
                    ),
                )
            )
    return advanced_tables
