"""Formats a `Status` for a terminal: a summary, and the findings that need a person.

    pipeline shop: 3 things need somebody
      source  slot "tidemark_shop" confirmed 0/1A2B3C4, keeps 2 MiB of WAL (reserved)
      ledger  generation 1, staged 0/1A2B3C4, heartbeat 2026-11-22 02:30:00 UTC
      lake    /lake
      tables  130: 128 exact, 1 parked, 1 not captured

    parked since …
      shop.orders: what happened, and what to do
        After that: tidemark unpark …

If many tables have the same finding, the first is printed in full and the others are named, so that a hundred and
thirty fit a screen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from tidemark.findings import listed
from tidemark.ledger.observations.overview import OpenBackfill
from tidemark.observe.first_steps import next_step
from tidemark.observe.health import EXACT, KINDS, SEVERITIES, Concern, Health
from tidemark.observe.status import Status
from tidemark.wording import counted, moment

SAID_IN_FULL: Final = 3
NAMES: Final = 20


def text(status: Status, *, everything: bool = False) -> str:
    """With `everything`, each finding is shown in full."""
    health = status.health
    lines = [f"pipeline {status.config.pipeline}: {_verdict(health)}", *_summary(status, health, everything=everything)]
    lines += _first_steps(health)
    for severity in SEVERITIES if everything else SEVERITIES[:2]:
        for kind, of_kind in groupby(health.of(severity), key=lambda concern: concern.kind):
            if kind == "new":  # its steps stand above
                continue
            lines += ["", _HEADINGS.get(kind, kind)]
            for _, group in groupby(of_kind, key=lambda concern: concern.group):
                lines += _concern_lines(list(group), None if everything else SAID_IN_FULL)
    for backfill in () if status.ledger is None else status.ledger.backfills:
        lines += ["", *_backfill(backfill)]
    if status.tables and not everything:
        lines += ["", f"Every table: tidemark status --all {status.config.path}"]
    return "\n".join(lines)


# --- the summary ------------------------------------------------------------------------------------------------------


def _summary(status: Status, health: Health, *, everything: bool) -> list[str]:
    counts = Counter(health.states.values())
    never = [] if status.ledger is None else [entry.table for entry in status.ledger.table_errors]
    counts["not captured"] += len(set(never) - {table.table for table in status.tables})
    states = ", ".join(f"{number} {state}" for state, number in sorted(counts.items(), key=_exact_first) if number)
    tables = f"{counts.total()}: {states}" if states else "none yet"
    if "ledger" in status.unseen:
        tables = "cannot be seen"
    return [
        f"  source  {_slot(status)}",
        f"  ledger  {_generation(status)}",
        f"  lake    {'cannot be seen' if 'lake' in status.unseen else status.config.lake}",
        f"  tables  {tables}",
        *_waiting(status),
        *_definitions(status),
        *_put_aside(status, None if everything else SAID_IN_FULL),
        *_maintenance(status),
    ]


def _waiting(status: Status) -> Iterator[str]:
    """Changes that are staged and not merged, by choice or because the table is leased."""
    due = sorted(at for table in status.tables if (at := status.due_at(table)) is not None)
    if due:
        wait = "waits" if len(due) == 1 else "wait"
        yield f"  merge   {counted(len(due), 'table')} {wait} by choice; the first is due at {moment(due[0])}"
    held: dict[str, list[str]] = {}
    for table in status.tables:
        if (holder := status.held_by(table)) is not None:
            held.setdefault(holder, []).append(table.table)
    for holder, names in sorted(held.items()):
        yield f"  merge   {holder} works on {listed(names, limit=NAMES)}; other merges leave what waits to the next one"


def _definitions(status: Status) -> Iterator[str]:
    """The last changes of tables' definitions, and the decisions about them."""
    for change in () if status.ledger is None else status.ledger.definition_changes[:SAID_IN_FULL]:
        by = f" by {change.decided_by}" if change.decided_by else ""
        yield f"  altered {change.table}: {change.reason}; {change.decided}{by} {moment(change.decided_at)}"


def _put_aside(status: Status, limit: int | None) -> Iterator[str]:
    """Delta tables that other ones have replaced (`ledger.captured.put_aside`), the oldest first, and when they are
    removed."""
    for pair in status.put_aside[:limit]:
        at = status.removed_from(pair)
        end = "" if pair.lsn is None else f", all of it below {pair.lsn}"
        size = "" if pair.bytes is None else f", {pair.bytes / 2**20:.0f} MiB"
        becomes = "kept for good" if at is None else f"maintenance removes it from {moment(at)} on"
        yield f"  aside   {pair.table} since {moment(pair.since)}{end}{size}; {becomes}"
    if limit is not None and len(status.put_aside) > limit:
        yield f"  aside   and {len(status.put_aside) - limit} more"


def _maintenance(status: Status) -> Iterator[str]:
    """The last maintenance; nothing before its first run, since its DAG may be paused by choice."""
    last = None if status.ledger is None else status.ledger.maintenance
    if last is not None:
        held = f"; staging is kept, since {last.retired['held_by']}" if last.retired.get("held_by") else ""
        batches, files = last.retired.get("batches", 0), last.tables.get("compacted", 0)
        yield (
            f"  upkeep  last {moment(last.ended_at)}: {counted(batches, 'batch')} removed from staging, "
            f"{counted(files, 'Delta table')} compacted{held}"
        )


def _exact_first(counted: tuple[str, int]) -> tuple[bool, str]:
    return counted[0] != EXACT, counted[0]


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
    heartbeat = "" if generation.heartbeat_at is None else f", heartbeat {moment(generation.heartbeat_at)}"
    held = sorted(status.ledger.held_back_by)
    confirmable = f", {status.ledger.confirmable_lsn} may be confirmed (held back by {listed(held)})" if held else ""
    return f"generation {generation.number}, staged {generation.staged_lsn}{confirmable}{heartbeat}"


def _first_steps(health: Health) -> Iterator[str]:
    """The steps that are done, and the command for the next one."""
    following = next_step(health.first_steps)
    if following is None or (following.name == "first proof" and health.worst):
        return
    yield from ("", "first steps")
    for step in health.first_steps:
        way = f". {step.way}" if step is following else ""
        yield f"  [{'x' if step.is_done else ' '}] {step.name}: {step.said}{way}"


# --- what needs somebody ----------------------------------------------------------------------------------------------

_HEADINGS: Final = {"no run": KINDS["no run"], "lag": "behind the source", "proof is old": "an old proof"}


def _verdict(health: Health) -> str:
    """The number of findings that need a person. Those that end by themselves, or may become worse, are counted
    apart."""
    red, warnings = len(health.of("red")), len(health.of("warning"))
    if not red and any(concern.kind == "new" for concern in health.of("warning")):
        return "it is new"
    said = f"{counted(red, 'thing')} need{'s' * (red == 1)} somebody" if red else "nothing needs anybody"
    return f"{said}, {counted(warnings, 'warning')}" if warnings else said


def _concern_lines(concerns: Sequence[Concern], limit: int | None) -> Iterator[str]:
    """The concerns of one group; beyond `limit` only the first in full."""
    first = concerns[0]
    in_full = concerns if limit is None or len(concerns) <= limit else concerns[:1]
    if limit is not None and all((one.message, one.ways) == (first.message, first.ways) for one in concerns):
        names = listed((concern.table for concern in concerns if concern.table), limit=NAMES)
        yield f"  {names}: {first.message}" if names else f"  {first.message}"
        yield from (f"    {way}" for way in first.ways)
        return
    for concern in in_full:
        since = "" if concern.since is None else f", since {moment(concern.since)}"
        yield f"  {concern.table}{since}: {concern.message}" if concern.table else f"  {concern.message}"
        yield from (f"    {way}" for way in concern.ways)
    rest = concerns[len(in_full) :]
    if rest:
        yield f"  and for the same reason {len(rest)} more: {listed((one.table for one in rest), limit=NAMES)}"


# --- backfills --------------------------------------------------------------------------------------------------------


def _backfill(backfill: OpenBackfill) -> list[str]:
    now = backfill.progress
    reader = (
        f"read by {backfill.read_by}" if backfill.read_by else f"nobody reads it, last at {moment(backfill.active_at)}"
    )
    what = "backfill" if backfill.purpose == "fill" else "verify"
    lines = [
        f"{what} {now.backfill} of {now.table}, open since {moment(backfill.opened_at)}, {reader}",
        f"  {now}",
    ]
    if backfill.filled:
        lines.append(f"  filled: range {', '.join(map(str, backfill.filled))}")
    return lines
