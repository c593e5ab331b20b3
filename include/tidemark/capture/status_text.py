"""A `Status` -> what a terminal shows: a summary, what needs somebody, and every table where that is asked for.

    pipeline shop: 3 things need somebody
      source  slot "tidemark_shop" confirmed 0/1A2B3C4, keeps 2 MiB of WAL (reserved)
      ledger  generation 1, staged 0/1A2B3C4, heartbeat 2026-11-22 02:30:00 UTC
      lake    /lake
      tables  130: 128 ok, 1 parked, 1 not captured

    parked since …
      shop.orders: what happened, and what to do
        After that: tidemark unpark …

Of many tables with one and the same trouble the first is said in full and the others are named, so that a hundred and
thirty fit a screen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from tidemark.capture.status import Need, Status, readable, shown_time
from tidemark.findings import listed
from tidemark.ledger.overview import OpenBackfill, TableStatus
from tidemark.wording import counted

SAID_IN_FULL: Final = 3
NAMES: Final = 20


def text(status: Status, *, everything: bool = False) -> str:
    """With `everything` each table has its line, and each need is said in full."""
    needs = status.needs
    count = f"{counted(len(needs), 'thing')} need{'s' * (len(needs) == 1)} somebody"
    lines = [f"pipeline {status.config.pipeline}: {count if needs else 'nothing needs anybody'}", *_summary(status)]
    for kind, of_kind in groupby(sorted(needs, key=_order), key=lambda need: need.kind):
        lines += ["", kind if kind != "no run" else "no run came to its end"]
        for _, group in groupby(of_kind, key=lambda need: need.group):
            lines += _said(list(group), None if everything else SAID_IN_FULL)
    for backfill in () if status.ledger is None else status.ledger.backfills:
        lines += ["", *_backfill(backfill)]
    if everything and status.tables:
        rows = [_line(status, table) for table in status.tables]
        lines += ["", *_aligned([("table", "state", "applied", "waiting", "proven through", "needs"), *rows])]
        for table in status.tables:
            row = table.row
            if row.error is not None and not row.life.is_parked:
                message = row.error.message
                lines += ["", f"{readable(row.table)} failed at {shown_time(row.error_at)}: {message}"]
    elif status.tables:
        lines += ["", f"Every table: tidemark status --all {status.config.path}"]
    return "\n".join(lines)


def to_json(status: Status) -> dict[str, Any]:
    """The same for programs, every table included."""
    ledger = status.ledger
    return {
        "pipeline": status.config.pipeline,
        "needs_somebody": status.needs_somebody,
        "unseen": status.unseen,
        "slot": None
        if status.slot is None
        else {
            "name": status.slot.name,
            "confirmed_lsn": str(status.slot.confirmed_lsn),
            "retained_bytes": status.slot.retained_bytes,
            "wal_status": status.slot.wal_status,
        },
        "generation": None
        if ledger is None
        else {
            "number": ledger.generation.number,
            "staged_lsn": str(ledger.generation.staged_lsn),
            "confirmable_lsn": str(ledger.confirmable_lsn),
            "heartbeat_at": ledger.generation.heartbeat_at and ledger.generation.heartbeat_at.isoformat(),
        },
        "maintenance": None
        if ledger is None or ledger.maintenance is None
        else {
            "ended_at": ledger.maintenance.ended_at.isoformat(),
            "retired": ledger.maintenance.retired,
            "tables": ledger.maintenance.tables,
        },
        "needs": [
            {
                "kind": need.kind,
                "table": need.table or None,
                "message": need.message,
                "since": need.since and need.since.isoformat(),
                "ways": list(need.ways),
            }
            for need in status.needs
        ],
        "tables": [
            {
                "table": table.table,
                "state": status.state_of(table),
                "applied_lsn": str(table.applied_lsn),
                "lag_bytes": table.lag_bytes,
                "waiting_batches": table.waiting_batches,
                "waiting_changes": table.waiting_changes,
                "needs_backfill": table.row.backfill_reason,
                "verified_through": None
                if table.verified is None or table.verified.through_lsn is None
                else str(table.verified.through_lsn),
                "verified_at": None
                if table.verified is None or table.verified.through_at is None
                else table.verified.through_at.isoformat(),
            }
            for table in status.tables
        ],
    }


# --- the summary ------------------------------------------------------------------------------------------------------


def _summary(status: Status) -> list[str]:
    counts = Counter(status.state_of(table) for table in status.tables)
    never = [] if status.ledger is None else [entry.table for entry in status.ledger.table_errors]
    counts["not captured"] += len(set(never) - {table.table for table in status.tables})
    states = ", ".join(f"{number} {state}" for state, number in sorted(counts.items(), key=_ok_first) if number)
    tables = f"{counts.total()}: {states}" if states else "none yet"
    if "ledger" in status.unseen:
        tables = "cannot be seen"
    return [
        f"  source  {_slot(status)}",
        f"  ledger  {_generation(status)}",
        f"  lake    {'cannot be seen' if 'lake' in status.unseen else status.config.lake}",
        f"  tables  {tables}",
        *_maintenance(status),
    ]


def _maintenance(status: Status) -> Iterator[str]:
    """Nothing before its first run: its DAG may be paused by choice."""
    last = None if status.ledger is None else status.ledger.maintenance
    if last is not None:
        held = f"; staging is kept, since {last.retired['held_by']}" if last.retired.get("held_by") else ""
        batches, files = last.retired.get("batches", 0), last.tables.get("compacted", 0)
        yield (
            f"  upkeep  last {shown_time(last.ended_at)}: {counted(batches, 'batch')} removed from staging, "
            f"{counted(files, 'Delta table')} compacted{held}"
        )


def _ok_first(counted: tuple[str, int]) -> tuple[bool, str]:
    return counted[0] != "ok", counted[0]


def _slot(status: Status) -> str:
    if "source" in status.unseen:
        return "cannot be seen"
    if status.slot is None:
        return f'slot "{status.config.slot}" does not exist; preflight creates it'
    retained = status.slot.retained_bytes / 2**20
    keeps = f"keeps {retained:.0f} MiB of WAL ({status.slot.wal_status})"
    return f'slot "{status.slot.name}" confirmed {status.slot.confirmed_lsn}, {keeps}'


def _generation(status: Status) -> str:
    if "ledger" in status.unseen:
        return "cannot be seen"
    if status.ledger is None:
        return "no generation yet; the first preflight opens one"
    generation = status.ledger.generation
    heartbeat = "" if generation.heartbeat_at is None else f", heartbeat {shown_time(generation.heartbeat_at)}"
    held = [readable(table) for table in sorted(status.ledger.held_back_by)]
    confirmable = f", {status.ledger.confirmable_lsn} may be confirmed (held back by {listed(held)})" if held else ""
    return f"generation {generation.number}, staged {generation.staged_lsn}{confirmable}{heartbeat}"


# --- what needs somebody ----------------------------------------------------------------------------------------------

_KINDS: Final = (
    "cannot be seen",
    "slot",
    "no run",
    "parked",
    "not captured",
    "has an error",
    "needs a backfill",
    "differs",
)


def _order(need: Need) -> tuple[int, str, str]:
    return _KINDS.index(need.kind), need.group, need.table


def _said(needs: Sequence[Need], limit: int | None) -> Iterator[str]:
    """Some needs of one group; beyond `limit` only the first in full."""
    in_full = needs if limit is None or len(needs) <= limit else needs[:1]
    if limit is not None and all(need.message == needs[0].message and not need.ways for need in needs):
        names = listed((need.table for need in needs if need.table), limit=NAMES)
        yield f"  {names}: {needs[0].message}" if names else f"  {needs[0].message}"
        return
    for need in in_full:
        since = "" if need.since is None else f", since {shown_time(need.since)}"
        yield f"  {need.table}{since}: {need.message}" if need.table else f"  {need.message}"
        yield from (f"    {way}" for way in need.ways)
    rest = needs[len(in_full) :]
    if rest:
        yield f"  and for the same reason {len(rest)} more: {listed((need.table for need in rest), limit=NAMES)}"


# --- backfills and tables ---------------------------------------------------------------------------------------------


def _backfill(backfill: OpenBackfill) -> list[str]:
    """The bounds of what is filled are values of rows; a terminal is no place for them."""
    now = backfill.progress
    reader = (
        f"read by {backfill.read_by}"
        if backfill.read_by
        else f"nobody reads it, last at {shown_time(backfill.active_at)}"
    )
    what = "backfill" if backfill.purpose == "fill" else "verify"
    lines = [
        f"{what} {now.backfill} of {readable(now.table)}, open since {shown_time(backfill.opened_at)}, {reader}",
        f"  {now}",
    ]
    if backfill.filled:
        ranges = ", ".join(str(number) for number in sorted({stretch.range for stretch in backfill.filled}))
        lines.append(f"  filled: {counted(len(backfill.filled), 'stretch')}, in range {ranges}")
    return lines


def _proven(table: TableStatus) -> str:
    proof = table.verified
    if proof is None:
        return "-"
    if proof.through_at is None:
        return f"{proof.proven} of {counted(proof.parts, 'part')}"
    return f"{proof.through_lsn} at {shown_time(proof.through_at)}"


def _line(status: Status, table: TableStatus) -> tuple[str, ...]:
    waiting = "-"
    if table.waiting_batches:
        waiting = f"{counted(table.waiting_changes, 'change')} in {counted(table.waiting_batches, 'batch')}"
    needs = []
    if table.row.life.needs_backfill:
        needs.append(f"a backfill: {table.row.backfill_reason}")
    if table.row.holes:
        needs.append(f"values of {', '.join(sorted(table.row.holes))} ({sum(table.row.holes.values())})")
    return (
        readable(table.table),
        status.state_of(table),
        str(table.applied_lsn),
        waiting,
        _proven(table),
        "; ".join(needs) or "-",
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
