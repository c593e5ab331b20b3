"""Converts a `Status`, and the details of one table, to JSON for `tidemark status --json` and Airflow's page.

LSNs are texts as PostgreSQL writes them, times are ISO 8601 in UTC, sizes and durations are numbers in the unit that
ends their name. No row's value is in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from textwrap import dedent, indent
from typing import Any, Final

from tidemark.config import PipelineConfig
from tidemark.formats import layout
from tidemark.ledger.captured.definition_changes import DefinitionChange
from tidemark.ledger.captured.put_aside import PutAside
from tidemark.ledger.captured.table_details import TableDetails
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.observations.overview import OpenBackfill, TableStatus
from tidemark.ledger.staged.plans import LastMerge
from tidemark.names import TableName
from tidemark.observe.health import EXACT, NOT_CAPTURED, SEVERITIES, Concern, Health
from tidemark.observe.park_endings import ending_commands
from tidemark.observe.run_verdict import figures_of
from tidemark.observe.status import Status
from tidemark.source.catalogue.column_findings import target_lines
from tidemark.source.wal.slot import SlotState
from tidemark.strict_json import to_builtins

DAGS: Final = ("capture", "backfill", "verify", "replay", "maintenance")


def to_json(status: Status) -> dict[str, Any]:
    """The whole status, with every table."""
    config, health = status.config, status.health
    document = {
        "pipeline": config.pipeline,
        "file": config.path,
        "lake": config.lake,
        "dags": dags(config.pipeline),
        "now": status.now,
        "health": health.worst or "ok",
        "line": health.line,
        "unseen": status.unseen,
        "first_steps": health.first_steps,
        "concerns": [*_concerns(status, health)],
        "slot": None if status.slot is None else _slot(config, status.slot),
        **_of_ledger(status, health),
        "queue": _queue(status),
        "put_aside": [_put_aside(pair, status) for pair in status.put_aside],
        "tables": [*_tables(status, health)],
    }
    plain: dict[str, Any] = to_builtins(document)
    return plain


def dags(pipeline: str) -> dict[str, str]:
    """The ids of the pipeline's DAGs."""
    return {kind: f"{pipeline}_{kind}" for kind in DAGS}


def details_to_json(config: PipelineConfig, details: TableDetails) -> dict[str, Any]:
    """The details that only the page of one table shows."""
    row = details.row
    plain: dict[str, Any] = to_builtins(
        {
            "table": row.table,
            **_named(details, "history_lsn", "current_lsn", "unfit", "recent"),
            "ways": ending_commands(config, row.table, row.error)
            if row.life.is_parked and row.error is not None
            else [],
            "holes": row.holes,
            "merges": [_merge(merge) for merge in details.merges],
            "paths": _paths(config, row),
            "as_text": _as_text(config, details),
            "columns": [
                {**_named(column, "name", "type", "target", "mask"), "unfit": details.unfit.get(column.name, 0)}
                for column in details.columns
            ],
            "not_captured": [{"column": column.name, "why": column.why} for column in row.uncaptured],
            "definition_changes": [_definition_change(change) for change in details.definition_changes],
            "versions": [{"version": version.number, "changed": version.changed} for version in details.versions],
            "delta": [
                {**_named(one, "kind", "files", "bytes", "rows"), "as_of": one.sized_at} for one in details.delta
            ],
        }
    )
    return plain


def _named(record: Any, *names: str) -> dict[str, Any]:
    """These fields of a record."""
    return {name: getattr(record, name) for name in names}


def _merge(merge: LastMerge) -> dict[str, Any]:
    """How the table was merged: each step, its way, and the reason; `planned_by` is the run, `<dag>/<run>`."""
    steps = [{"step": step, "way": way, "why": merge.why.get(step, "")} for step, way in merge.way.items()]
    return {**_named(merge, "plan", "at", "planned_by", "changes", "seconds", "fall_backs"), "steps": steps}


def _paths(config: PipelineConfig, row: TableRow) -> dict[str, str]:
    """The paths of the table's Delta tables; a table with history alone has no `current`."""
    name = TableName.parse(row.table)
    history = f"{config.lake}/{layout.history_table(config.pipeline, name)}"
    current = f"{config.lake}/{layout.current_table(config.pipeline, name)}"
    return {"current": current, "history": history} if row.has_current else {"history": history}


def _as_text(config: PipelineConfig, details: TableDetails) -> dict[str, str] | None:
    """The lines for `tables:` of the pipeline file that capture columns with values that did not fit as text, and
    their effect; None for a table without such values."""
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
    """One pipeline's line among all pipelines, from the result of `to_json`."""
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


def _definition_change(change: DefinitionChange) -> dict[str, Any]:
    """The decision about a changed definition; `before` and `after` are version numbers."""
    named = _named(change, "table", "lsn", "decided", "reason", "before", "after")
    return {**named, "by": change.decided_by, "at": change.decided_at}


def _concerns(status: Status, health: Health) -> Iterator[dict[str, Any]]:
    """`table_id` is None for a concern about none of the listed tables."""
    ids = {table.table for table in status.tables}
    for concern in health.concerns:
        yield {
            **_named(concern, "kind", "severity", "group", "line", "message", "since", "ways"),
            "table": concern.table or None,
            "table_id": concern.table if concern.table in ids else None,
        }


def _slot(config: PipelineConfig, slot: SlotState) -> dict[str, Any]:
    """`limit_bytes` is the retained WAL at which the server invalidates the slot, None if there is no limit."""
    return {
        **_named(slot, "name", "confirmed_lsn", "wal_status", "retained_bytes", "limit_bytes"),
        "lost": slot.wal_status == "lost" or slot.invalidation_reason is not None,
        "active": slot.active_pid is not None,
        "valve_bytes": config.bounds.wal_valve_bytes,
    }


def _of_ledger(status: Status, health: Health) -> dict[str, Any]:
    """The ledger's part of the state. `applied_lsn` is the position of every table that is merged: not parked,
    paused or deferred."""
    ledger = status.ledger
    if ledger is None:
        missing = dict.fromkeys(("positions", "lag", "generation", "maintenance"))
        return {**missing, "backfills": [], "definition_changes": []}
    figures, generation = figures_of(status, health), ledger.generation
    return {
        "positions": {
            **_named(figures, "confirmed_lsn", "applied_lsn", "staged_lsn", "source_lsn"),
            "staged_at": generation.heartbeat_at,
            "confirmable_lsn": ledger.confirmable_lsn,
            "held_back_by": sorted(ledger.held_back_by),
        },
        "lag": {
            "s": figures.lag_s,
            "bytes": figures.lag_bytes,
            "as_of": ledger.level_through,
            "max_s": status.config.alerts.max_lag_s,
        },
        "generation": {
            **_named(generation, "number", "staged_lsn", "heartbeat_at", "opened_at", "reason"),
            "confirmable_lsn": ledger.confirmable_lsn,
        },
        "backfills": [_backfill(backfill) for backfill in ledger.backfills],
        "maintenance": ledger.maintenance,
        "definition_changes": [_definition_change(change) for change in ledger.definition_changes],
    }


def _queue(status: Status) -> dict[str, Any]:
    """The staged changes that are not merged, over all tables; `batches` is the number of the table with the most."""
    waiting = [table.backlog for table in status.tables if table.backlog is not None]
    return {
        "tables": len(waiting),
        "batches": max((backlog.batches for backlog in waiting), default=0),
        "changes": sum(backlog.changes for backlog in waiting),
        "bytes": sum(backlog.bytes for backlog in waiting),
        "since": min((backlog.since for backlog in waiting), default=None),
    }


def _backfill(backfill: OpenBackfill) -> dict[str, Any]:
    now = backfill.progress
    return {
        **_named(backfill, "purpose", "read_by", "opened_at", "active_at"),
        **_named(now, "backfill", "table", "mode", "rows", "estimated_rows", "rate_rows_s", "left_s", "share"),
        **_named(now, "ranges", "ranges_done", "chunks", "claimed"),
        "name": now.table,
    }


def _put_aside(pair: PutAside, status: Status) -> dict[str, Any]:
    """Tables that were put aside. `removed_from` is null if maintenance removes none."""
    shown = _named(pair, "table", "lsn", "since", "bytes")
    return {**shown, "name": pair.table, "removed_from": status.removed_from(pair)}


def _tables(status: Status, health: Health) -> Iterator[dict[str, Any]]:
    worst: dict[str, Concern] = {}
    for concern in health.concerns:  # the hardest first
        if concern.table and concern.severity in SEVERITIES[:2]:
            worst.setdefault(concern.table, concern)
    for table in status.tables:
        yield {
            **_table(table, health.states[table.table], worst.get(table.table)),
            "lag_s": _lag_s(table, status),
            "due_at": status.due_at(table),
            "held_by": status.held_by(table),
        }


def _lag_s(table: TableStatus, status: Status) -> float:
    """The age of the table's oldest staged change that is not applied; 0 without one."""
    oldest = None if table.backlog is None else table.backlog.oldest_change_at
    return 0.0 if oldest is None else max((status.now - oldest).total_seconds(), 0.0)


def _table(table: TableStatus, state: str, worst: Concern | None) -> dict[str, Any]:
    """One table. `worst` is the worst thing that is wrong with it, None if nothing is."""
    row, proof = table.row, table.verified
    current = next((one for one in table.delta if one.kind == "current"), None)
    error_since = row.state_since if row.life.is_parked else row.error_at
    mild = "ok" if state == EXACT else "note"
    return {
        **_named(table, "table", "applied_lsn", "lag_bytes", "differences"),
        **_named(table, "waiting_batches", "waiting_changes", "waiting_bytes", "waiting_since"),
        "name": table.table,
        "state": worst.kind if worst is not None and state == EXACT else state,
        "severity": mild if worst is None else worst.severity,
        "why": "" if worst is None else worst.brief or worst.message,
        "since": row.state_since,
        "changed_at": row.changed_at,
        "needs_backfill": row.backfill_reason,
        "needs_backfill_since": row.backfill_since,
        "parked": row.life.is_parked,
        "paused_by": row.paused_by,
        "error": None if row.error is None else {**row.error.to_json(), "since": error_since},
        "verified_through": None if proof is None else proof.through_lsn,
        "verified_at": None if proof is None else proof.through_at,
        "parts": None if proof is None else proof.parts,
        "proven_parts": None if proof is None else proof.proven,
        "holes": sum(row.holes.values()),
        "rows": None if current is None else current.rows,
        "files": sum(one.files for one in table.delta) if table.delta else None,
        "bytes": sum(one.bytes for one in table.delta) if table.delta else None,
    }
