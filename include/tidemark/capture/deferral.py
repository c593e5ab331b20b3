"""Decides by `merge` of the pipeline file which tables are merged now, and when each deferred table is due (R6).

A table waits only by choice: the file allows it, and the table is in state `deferred`, which it enters once a merge has
applied its changes. Its waiting changes count as staged (R3), so it holds nothing back: the files are durable and
registered, the slot moves on, and retention keeps unapplied files. A late merge is exact: it applies every batch in
order, each under the schema version that it was staged with. So neither a truncate nor a change of columns makes a
table due. These make a table due before its time:

    chunks of a backfill or a verify   the run's report waits for them, and their evidence keeps staging
    a last merge that failed           R6 counts failed runs; a table should not take hours to be parked
    a generation that has ended        nothing is added to it, and the next generation has to wait for it (R1)
    a run that a person triggered      a person who presses the button expects the newest rows

A table in any other state is due with each plan, or parked. A new or un-parked table is merged at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tidemark.config import Merge, PipelineConfig
from tidemark.ledger.captured import merge_states
from tidemark.ledger.connection import Ledger
from tidemark.ledger.observations.overview import TableStatus
from tidemark.ledger.staged import unapplied_changes
from tidemark.ledger.staged.unapplied_changes import Backlog
from tidemark.schema.table_life import DEFERRED
from tidemark.wording import counted, moment


@dataclass(frozen=True, slots=True)
class DueTables:
    """`tables` may be merged now, with or without waiting changes. `deferred` maps each deferred table to the time at
    which it is due."""

    tables: frozenset[str]
    deferred: Mapping[str, datetime] = field(default_factory=dict)

    @property
    def clause(self) -> str:
        """A clause about the deferred tables for the end of a message; "" if none is deferred."""
        if not self.deferred:
            return ""
        tables, first = counted(len(self.deferred), "table"), moment(min(self.deferred.values()))
        return f"; {tables} {'waits' if len(self.deferred) == 1 else 'wait'} by choice, the first until {first}"


def due_tables(ledger: Ledger, config: PipelineConfig, now: datetime, *, all_of_them: bool = False) -> DueTables:
    """The due and the deferred tables. A parked table is in neither, unless its retry is due. With `all_of_them` no
    table is deferred."""
    allowed = merge_states.due(ledger, config.bounds.unpark_retry_s)
    if all_of_them or not config.merge.defers:
        return DueTables(frozenset(allowed))
    waiting = unapplied_changes.all_of(ledger, allowed & merge_states.deferred(ledger))
    deferred = {
        table: config.merge.due_at(backlog.since)
        for table, backlog in waiting.items()
        if not is_due(config.merge, backlog, now)
    }
    return DueTables(frozenset(allowed - deferred.keys()), deferred)


def is_due(merge: Merge, backlog: Backlog, now: datetime) -> bool:
    """Whether the waiting changes of a deferred table are merged now, if its last merge did not fail."""
    if backlog.has_chunks or backlog.is_of_the_past:
        return True
    if merge.rows is not None and backlog.changes >= merge.rows:
        return True
    # The second bound is for changes that were staged while a clock was ahead: they would wait until that moment.
    return not now < merge.due_at(backlog.since) <= now + timedelta(seconds=merge.every_s)


def waits_until(config: PipelineConfig, table: TableStatus, now: datetime) -> datetime | None:
    """The time at which a deferred table is due; None for a table that does not wait, or is due."""
    row, backlog = table.row, table.backlog
    if backlog is None or not config.merge.defers or row.life.merge != DEFERRED or row.failed_runs:
        return None
    return None if is_due(config.merge, backlog, now) else config.merge.due_at(backlog.since)


def apply_deferral(ledger: Ledger, config: PipelineConfig, merged: Collection[str] = ()) -> None:
    """Begin or end the deferral of tables in the ledger, as the pipeline file requires. A table becomes deferred while
    it has no waiting changes, so the first merge of a new or un-parked table is never late. In a run that follows the
    source, the next changes may wait already behind the merge of a busy table. So the tables that were just `merged`
    become deferred, too."""
    if config.merge.defers:
        merge_states.defer(ledger, merged)
    else:
        merge_states.merge_always(ledger)
