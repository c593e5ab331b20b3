"""Ends a run: records the pipeline's state in `runs`, sends alerts, and returns the verdict.

It reads the state as it is, whoever caused it, and changes nothing that a table or the slot depends on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from tidemark.ledger.connection import open_ledger
from tidemark.ledger.observations import runs
from tidemark.ledger.observations.runs import Figures, Verdict
from tidemark.lsn import Lsn
from tidemark.observe import health_alerts
from tidemark.observe.health import Health, is_unread
from tidemark.observe.status import Status, read_status
from tidemark.run import Run


@dataclass(frozen=True, slots=True)
class ExaminedRun:
    """`changes` are the changes that the run staged, None if unknown."""

    health: Health
    figures: Figures
    changes: int | None = None


def examine(run: Run, *, tell: Callable[[str], None], of_capture: bool = True) -> ExaminedRun:
    """Record a capture's figures, send alerts for what is new or cleared, and return the verdict. While the ledger
    cannot be read, sent alerts cannot be recorded, so each run sends that alert. Raises what `tell` raises."""
    status = read_status(run.config, source=run.source, ledger=run.ledger, now=run.now, of_lake=False)
    health = status.health
    figures = figures_of(status, health)
    if "ledger" in status.unseen:
        tell(f"Pipeline {health.pipeline}: {health.line}")
        return ExaminedRun(health, figures)
    with open_ledger(run.ledger, run.pipeline) as book:
        changes = runs.note_figures(book, run.run_id, figures) if of_capture else None
        health_alerts.announce(book, health, tell=tell)
    return ExaminedRun(health, figures, changes)


def figures_of(status: Status, health: Health) -> Figures:
    ledger, slot = status.ledger, status.slot
    verdict: Verdict = health.worst or "ok"
    if ledger is None:
        return Figures(verdict)
    generation = ledger.generation
    source_lsn = None if slot is None or slot.restart_lsn is None else Lsn(slot.restart_lsn + slot.retained_bytes)
    waiting = [table for table in ledger.tables if table.backlog is not None]
    merged = [table.backlog for table in waiting if table.row.life.is_merged and table.backlog is not None]
    unread_since = [backlog.oldest_change_at for backlog in merged if backlog.oldest_change_at is not None]
    reached_lsn = generation.staged_lsn
    if is_unread(status.config, ledger, status.now):
        unread_since.append(ledger.level_through)
        reached_lsn = source_lsn or reached_lsn
    return Figures(
        verdict,
        generation=generation.number,
        staged_lsn=generation.staged_lsn,
        applied_lsn=ledger.confirmable_lsn,
        confirmed_lsn=generation.confirmed_lsn if slot is None else slot.confirmed_lsn,
        source_lsn=source_lsn,
        lag_bytes=max(0, reached_lsn - ledger.confirmable_lsn),
        lag_s=max((status.now - min([status.now, *unread_since])) / timedelta(seconds=1), 0.0),
        retained_bytes=None if slot is None else slot.retained_bytes,
        limit_bytes=None if slot is None else slot.limit_bytes,
        unapplied_batches=sum(table.waiting_batches for table in waiting),
        unapplied_changes=sum(table.waiting_changes for table in waiting),
        tables=dict(sorted(Counter(health.states.values()).items())),
    )
