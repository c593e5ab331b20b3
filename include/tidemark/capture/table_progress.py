"""Computes from ingested results, per table whose position rose: LSN range, rows, lag behind the source.

It is for people and for later readers of the tables. It does not decide what is applied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tidemark.capture.merge_planning import Ingested, IngestedTable
from tidemark.ledger.captured import definition_changes, relation_ids, tables
from tidemark.ledger.captured.definition_changes import DefinitionChange
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.staged import batches
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.run import Run


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
