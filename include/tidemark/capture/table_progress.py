"""Computes from ingested results, per table whose position rose: LSN range, rows, lag behind the source.

It is for people and for later readers of the tables. It does not decide what is applied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby

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
    """The table's applied position went from `start_lsn` (None: it had none in this generation) to `end_lsn`.

    `rows` are those of `formats.merge_result.TableResult`, summed; `lag_s` is the time since the commit of the newest
    change in the last applied batch. `definition_changes` are what was decided of its definition in between, newest
    first. `called` is what the source calls it now, its id where it is captured no more.
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
    """Many results as one, with one entry per table and generation, for `advanced`: what a run that follows the source
    for a day keeps of its merges."""
    together: dict[tuple[str, int], IngestedTable] = {}
    for table in (table for one in ingested for table in one.tables):
        before = together.get((table.table, table.generation))
        if before is not None:
            rows = dict(Counter(before.rows) + Counter(table.rows))
            table = replace(table, before=before.before, rows=rows, seconds=before.seconds + table.seconds)
        together[table.table, table.generation] = table
    return Ingested((), tuple(together.values()))


def advanced(run: Run, ingested: Iterable[Ingested]) -> list[AdvancedTable]:
    """The tables whose position advanced, by id; a table of several results appears once per generation."""
    risen = sorted(
        (table for result in ingested for table in result.tables if table.advanced and table.after is not None),
        key=lambda table: (table.table, table.generation),
    )
    advanced_tables = []
    now = run.now()
    with open_ledger(run.ledger, run.pipeline) as book:
        captured = {row.table for row in tables.all_of(book) if row.life.is_captured}
        names = {table: name for table, name in relation_ids.names(book).items() if table in captured}
        for (table, generation), group in groupby(risen, key=lambda table: (table.table, table.generation)):
            steps = sorted(group, key=_end)
            committed_at = batches.last_committed_at(book, generation, _end(steps[-1]))
            advanced_tables.append(
                AdvancedTable(
                    table=TableName.parse(table),
                    called=names.get(table, TableName.parse(table)),
                    generation=generation,
                    start_lsn=steps[0].before,
                    end_lsn=_end(steps[-1]),
                    rows=dict(sum((Counter(step.rows) for step in steps), Counter())),
                    lag_s=None if committed_at is None else (now - committed_at).total_seconds(),
                    definition_changes=definition_changes.between(
                        book, table, generation, steps[0].before, _end(steps[-1])
                    ),
                )
            )
    return advanced_tables


def _end(table: IngestedTable) -> Lsn:
    assert table.after is not None
    return table.after
