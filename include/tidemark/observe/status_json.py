"""Converts a `Status`, and the details of one table, to JSON for `tidemark status --json` and Airflow's page.

LSNs are texts as PostgreSQL writes them, times are ISO 8601 in UTC, sizes and durations are numbers in the unit that
ends their name. No row's value is in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from textwrap import dedent, indent
from typing import Any, Final

from tidemark.config import PipelineConfig
from tidemark.formats import layout
from tidemark.ledger.captured.definition_changes import DefinitionChange
from tidemark.ledger.captured.put_aside import PutAside
from tidemark.ledger.captured.table_details import TableDetails
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.observations.delays import Delays
from tidemark.ledger.observations.overview import OpenBackfill, PipelineStatus, TableStatus
from tidemark.ledger.staged.plans import LastMerge
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.observe.health import EXACT, NOT_CAPTURED, SEVERITIES, Concern, Health
from tidemark.observe.park_endings import ways_on
from tidemark.observe.run_verdict import figures_of
from tidemark.observe.status import Status
from tidemark.schema.table import Column
from tidemark.source.catalogue.column_findings import target_lines
from tidemark.source.wal.slot import SlotState

DAGS: Final = ("capture", "backfill", "verify", "replay", "maintenance")


def to_json(status: Status) -> dict[str, Any]:
    """All of it, every table included."""
    ledger, health = status.ledger, status.health
    return {
        "pipeline": status.config.pipeline,
        "file": status.config.path,
        "lake": status.config.lake,
        "dags": dags(status.config.pipeline),
        "now": _time(status.now),
        "health": health.worst or "ok",
        "line": health.line,
        "unseen": status.unseen,
        "first_steps": [
            {"name": step.name, "done": step.is_done, "said": step.said, "way": step.way, "tables": step.tables}
            for step in status.first_steps
        ],
        "concerns": [_concern(concern, status) for concern in health.concerns],
        "slot": None if status.slot is None else _slot(status.config, status.slot),
        "positions": None if ledger is None else _positions(status, ledger),
        "lag": None if ledger is None else _lag(status),
        "generation": None if ledger is None else _generation(ledger),
        "queue": _queue(status),
        "backfills": [] if ledger is None else [_backfill(backfill) for backfill in ledger.backfills],
        "maintenance": None if ledger is None else _maintenance(ledger),
        "definition_changes": [] if ledger is None else [definition_change(c) for c in ledger.definition_changes],
        "put_aside": [_put_aside(pair, status) for pair in status.put_aside],
        "tables": [*_tables(status, health)],
    }


def dags(pipeline: str) -> dict[str, str]:
    """The ids of the pipeline's DAGs."""
    return {kind: f"{pipeline}_{kind}" for kind in DAGS}


def details_to_json(config: PipelineConfig, details: TableDetails) -> dict[str, Any]:
    """What only the page of one table shows."""
    row = details.row
    return {
        "table": row.table,
        "history_lsn": _lsn(details.history_lsn),
        "current_lsn": _lsn(details.current_lsn),
        "ways": ways_on(config, row.table, row.error) if row.life.is_parked and row.error is not None else [],
        "holes": row.holes,
        "unfit": details.unfit,
        "merges": [_merge(merge) for merge in details.merges],
        "recent": None
        if details.recent is None
        else {"changes": details.recent.changes, "over_s": details.recent.over_s},
        "paths": _paths(config, row),
        "as_text": _as_text(config, details),
        "columns": [_column(column, details.unfit) for column in details.columns],
        "not_captured": [{"column": column.name, "why": column.why} for column in row.uncaptured],
        "definition_changes": [definition_change(change) for change in details.definition_changes],
        "versions": [{"version": version.number, "changed": list(version.changed)} for version in details.versions],
        "delta": [
            {"kind": one.kind, "files": one.files, "bytes": one.bytes, "rows": one.rows, "as_of": _time(one.sized_at)}
            for one in details.delta
        ],
    }


def _merge(merge: LastMerge) -> dict[str, Any]:
    """How the table was merged: each step, the way that it took, and why; `planned_by` is the run, `<dag>/<run>`."""
    steps = [{"step": step, "way": way, "why": merge.why.get(step, "")} for step, way in merge.way.items()]
    return {
        "plan": merge.plan,
        "at": _time(merge.at),
        "planned_by": merge.planned_by,
        "changes": merge.changes,
        "seconds": merge.seconds,
        "steps": steps,
        "fall_backs": list(merge.fall_backs),
    }


def _paths(config: PipelineConfig, row: TableRow) -> dict[str, str]:
    """Where the table's Delta tables are; a table of history alone has no `current`."""
    name = TableName.parse(row.table)
    history = f"{config.lake}/{layout.history_table(config.pipeline, name)}"
    current = f"{config.lake}/{layout.current_table(config.pipeline, name)}"
    return {"current": current, "history": history} if row.has_current else {"history": history}


def _as_text(config: PipelineConfig, details: TableDetails) -> dict[str, str] | None:
    """What to put under `tables:` of the pipeline file, so that the columns whose values did not fit are captured as
    text, and what happens then; None for a table without any."""
    if not details.unfit or details.called is None:
        return None
    lines = indent(dedent(target_lines({details.called: details.unfit}, "text")), "  ")
    if config.evolves(details.called) == "follow":
        then = (
            "The next run with the new file builds the table anew beside this one. Readers see this one until the new "
            "one is whole."
        )
    else:
        then = "After the next run with the new file, the table needs a backfill."
    return {"lines": lines, "then": then}


def overview(whole: Mapping[str, Any]) -> dict[str, Any]:
    """The line of one pipeline among all of them, from what `to_json` returned."""
    captured = [table for table in whole["tables"] if table["state"] != NOT_CAPTURED]
    proofs = sorted(table["verified_at"] for table in captured if table["verified_at"])
    rows = [table["rows"] for table in captured if table["rows"] is not None]
    return {
        **{key: whole[key] for key in ("pipeline", "now", "health", "line", "lag", "slot", "queue", "unseen")},
        "is_new": whole["health"] == "warning" and any(one["kind"] == "new" for one in whole["concerns"]),
        "states": Counter(table["state"] for table in whole["tables"]),
        "tables": len(captured),
        "rows": sum(rows) if rows else None,
        "bytes": sum(table["bytes"] or 0 for table in captured),
        "proven": len(proofs),
        "oldest_proof": proofs[0] if proofs else None,
    }


def _column(column: Column, unfit: Mapping[str, int]) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": column.type,
        "target": column.target,
        "mask": column.mask,
        "unfit": unfit.get(column.name, 0),
    }


def definition_change(change: DefinitionChange) -> dict[str, Any]:
    """What was decided when a table's definition changed; `before` and `after` are version numbers."""
    return {
        "table": change.table,
        "lsn": _lsn(change.lsn),
        "decided": change.decided,
        "reason": change.reason,
        "before": change.before,
        "after": change.after,
        "by": change.decided_by,
        "at": _time(change.decided_at),
    }


def _concern(concern: Concern, status: Status) -> dict[str, Any]:
    ids = {table.table: table.table for table in status.tables}
    return {
        "kind": concern.kind,
        "severity": concern.severity,
        "table": concern.table or None,
        "table_id": ids.get(concern.table),
        "group": concern.group,
        "line": concern.line,
        "message": concern.message,
        "since": _time(concern.since),
        "ways": list(concern.ways),
    }


def _slot(config: PipelineConfig, slot: SlotState) -> dict[str, Any]:
    """`limit_bytes` is where the server gives the slot up, None if it never does."""
    return {
        "name": slot.name,
        "confirmed_lsn": _lsn(slot.confirmed_lsn),
        "wal_status": slot.wal_status,
        "lost": slot.wal_status == "lost" or slot.invalidation_reason is not None,
        "active": slot.active_pid is not None,
        "retained_bytes": slot.retained_bytes,
        "limit_bytes": slot.limit_bytes,
        "valve_bytes": config.bounds.wal_valve_bytes,
    }


def _positions(status: Status, ledger: PipelineStatus) -> dict[str, Any]:
    """`applied_lsn` is that of every table that is merged: not parked, paused or deferred."""
    figures = figures_of(status, status.health)
    return {
        "confirmed_lsn": _lsn(figures.confirmed_lsn),
        "applied_lsn": _lsn(figures.applied_lsn),
        "staged_lsn": _lsn(figures.staged_lsn),
        "source_lsn": _lsn(figures.source_lsn),
        "staged_at": _time(ledger.generation.heartbeat_at),
        "confirmable_lsn": _lsn(ledger.confirmable_lsn),
        "held_back_by": sorted(ledger.held_back_by),
    }


def _lag(status: Status) -> dict[str, Any]:
    figures = figures_of(status, status.health)
    as_of = None if status.ledger is None else status.ledger.level_through
    return {
        "s": figures.lag_s,
        "bytes": figures.lag_bytes,
        "as_of": _time(as_of),
        "max_s": status.config.alerts.max_lag_s,
    }


def delays(present: Delays | None) -> dict[str, Any] | None:
    """From a commit to its Delta table, median and worst hundredth of what was merged since a moment."""
    if present is None:
        return None
    return {"p50_s": present.p50_s, "p99_s": present.p99_s, "since": _time(present.since)}


def _generation(ledger: PipelineStatus) -> dict[str, Any]:
    generation = ledger.generation
    return {
        "number": generation.number,
        "staged_lsn": _lsn(generation.staged_lsn),
        "confirmable_lsn": _lsn(ledger.confirmable_lsn),
        "heartbeat_at": _time(generation.heartbeat_at),
        "opened_at": _time(generation.opened_at),
        "reason": generation.reason,
    }


def _queue(status: Status) -> dict[str, Any]:
    """What is staged and not merged, over all tables; `batches` are those of the table with the most."""
    waiting = [table.backlog for table in status.tables if table.backlog is not None]
    return {
        "tables": len(waiting),
        "batches": max((backlog.batches for backlog in waiting), default=0),
        "changes": sum(backlog.changes for backlog in waiting),
        "bytes": sum(backlog.bytes for backlog in waiting),
        "since": _time(min((backlog.since for backlog in waiting), default=None)),
    }


def _backfill(backfill: OpenBackfill) -> dict[str, Any]:
    """Without the bounds of what is filled, which are values of rows."""
    now = backfill.progress
    return {
        "backfill": now.backfill,
        "purpose": backfill.purpose,
        "table": now.table,
        "name": now.table,
        "mode": now.mode,
        "rows": now.rows,
        "estimated_rows": now.estimated_rows,
        "rate_rows_s": now.rate_rows_s,
        "left_s": now.left_s,
        "share": now.share,
        "ranges": now.ranges,
        "ranges_done": now.ranges_done,
        "chunks": now.chunks,
        "claimed": now.claimed,
        "read_by": backfill.read_by,
        "opened_at": _time(backfill.opened_at),
        "active_at": _time(backfill.active_at),
    }


def _maintenance(ledger: PipelineStatus) -> dict[str, Any] | None:
    last = ledger.maintenance
    return None if last is None else {"ended_at": _time(last.ended_at), "retired": last.retired, "tables": last.tables}


def _put_aside(pair: PutAside, status: Status) -> dict[str, Any]:
    """`removed_from` is null where maintenance removes none."""
    return {
        "table": pair.table,
        "name": pair.table,
        "lsn": _lsn(pair.lsn),
        "since": _time(pair.since),
        "bytes": pair.bytes,
        "removed_from": _time(status.removed_from(pair)),
    }


def _tables(status: Status, health: Health) -> Iterator[dict[str, Any]]:
    worst: dict[str, Concern] = {}
    for concern in health.concerns:  # the hardest first
        if concern.table:
            worst.setdefault(concern.table, concern)
    for table in status.tables:
        name = table.table
        yield {
            **_table(table, name, health.states[table.table], worst.get(name)),
            "lag_s": _lag_of(table, status.now),
            "due_at": _time(status.due_at(table)),
            "held_by": status.held_by(table),
        }


def _lag_of(table: TableStatus, now: datetime) -> float:
    """The age of its oldest staged change that is not applied; 0 without one."""
    oldest = None if table.backlog is None else table.backlog.oldest_change_at
    return 0.0 if oldest is None else max((now - oldest).total_seconds(), 0.0)


def _table(table: TableStatus, name: str, state: str, worst: Concern | None) -> dict[str, Any]:
    row, proof, backlog = table.row, table.verified, table.backlog
    current = next((one for one in table.delta if one.kind == "current"), None)
    wrong = worst is not None and worst.severity in SEVERITIES[:2]
    return {
        "table": table.table,
        "name": name,
        "state": worst.kind if worst is not None and wrong and state == EXACT else state,
        "severity": worst.severity if worst is not None and wrong else "note" if state != EXACT else "ok",
        "why": (worst.brief or worst.message) if worst is not None and wrong else "",
        "since": _time(row.state_since),
        "applied_lsn": _lsn(table.applied_lsn),
        "changed_at": _time(row.changed_at),
        "lag_bytes": table.lag_bytes,
        "waiting_batches": 0 if backlog is None else backlog.batches,
        "waiting_changes": 0 if backlog is None else backlog.changes,
        "waiting_bytes": 0 if backlog is None else backlog.bytes,
        "waiting_since": None if backlog is None else _time(backlog.since),
        "needs_backfill": row.backfill_reason,
        "needs_backfill_since": _time(row.backfill_since),
        "parked": row.life.is_parked,
        "paused_by": row.paused_by,
        "error": None
        if row.error is None
        else {
            "kind": row.error.kind,
            "move": row.error.move,
            "message": row.error.message,
            "since": _time(row.state_since if row.life.is_parked else row.error_at),
        },
        "verified_through": None if proof is None else _lsn(proof.through_lsn),
        "verified_at": None if proof is None else _time(proof.through_at),
        "parts": None if proof is None else proof.parts,
        "proven_parts": None if proof is None else proof.proven,
        "differences": table.differences,
        "holes": sum(row.holes.values()),
        "rows": None if current is None else current.rows,
        "files": sum(one.files for one in table.delta) if table.delta else None,
        "bytes": sum(one.bytes for one in table.delta) if table.delta else None,
    }


def _lsn(lsn: Lsn | None) -> str | None:
    return None if lsn is None else str(lsn)


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
