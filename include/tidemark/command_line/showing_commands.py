"""Runs the commands that only show something (status, tables, plan …), from the same records as Airflow's page.

Each has `--json`, for programs. The exit status is the severity: 0 if nothing is wrong, 3 for a warning or a problem
that ends by itself, 1 if a person must act.
"""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from fnmatch import fnmatch
from typing import Any, Final

from tidemark.command_line import screen
from tidemark.command_line.invocation import Invocation, pipelines_folder
from tidemark.config import file_reader
from tidemark.errors import TidemarkError
from tidemark.findings import listed
from tidemark.ledger.captured.tables import TableRow
from tidemark.lsn import Lsn
from tidemark.observe import status_json, table_commands
from tidemark.observe.status import Status
from tidemark.strict_json import to_builtins
from tidemark.wording import counted, duration, moment

EXIT: Final = {"ok": 0, "note": 0, "warning": 3, "red": 1}


def status(called: Invocation) -> int:
    from tidemark.observe import status_text

    while True:
        now = called.read_status()
        shown = status_json.to_json(now)
        if called.options.json:
            screen.dump(shown)
        else:
            text = status_text.text(now, everything=called.options.all)
            if called.options.watch is not None:
                screen.clear()
            print(text, flush=True)
            if called.options.all:
                screen.say("")
                _table_lines(shown["tables"], shown["now"])
        if called.options.watch is None:
            return _exit(now)
        try:
            time.sleep(max(1, called.options.watch))
        except KeyboardInterrupt:
            return _exit(now)


def pipelines(options: argparse.Namespace) -> int:
    """Print every file of the folder: its pipeline, or its problems."""
    folder = pipelines_folder()
    configs, problems = file_reader.read_all(folder)
    if options.json:
        keys = ("pipeline", "path", "source_connection", "lake", "schedule")
        screen.dump([{key: getattr(config, key) for key in keys} for config in configs])
    elif options.names:
        screen.say(*(config.pipeline for config in configs))
    else:
        screen.table(
            ("pipeline", "source", "tables", "lake", "file"),
            [
                (
                    *(config.pipeline, config.source_connection, listed((rule.pattern for rule in config.tables), 5)),
                    *(config.lake, config.path),
                )
                for config in configs
            ],
        )
        screen.say(*(str(problem) for problem in problems))
    return 1 if problems else 0


def tables(called: Invocation) -> int:
    """Print every table, or those whose name fits a pattern. For a table that is named in full, print all details."""
    options = called.options
    now = called.read_status(of_lake=False)
    shown = status_json.to_json(now)
    pattern = options.pattern
    if pattern and not any(_fits(row, pattern) for row in shown["tables"]):
        with called.open_ledger() as book:
            pattern = table_commands.row_of(book, called.config, pattern).table
    rows = [row for row in shown["tables"] if _fits(row, pattern) and options.state in (None, row["state"])]
    if options.json:
        screen.dump(rows)
    elif len(rows) == 1 and pattern == rows[0]["table"]:
        _one_table(called, rows[0], shown["now"])
    else:
        _table_lines(rows, shown["now"])
    severities = {row["severity"] for row in rows}
    return max((EXIT[severity] for severity in severities), key=lambda code: (0, 3, 1).index(code), default=0)


def positions(called: Invocation) -> int:
    now = called.read_status(of_lake=False)
    shown = status_json.to_json(now)
    at, slot, lag = shown["positions"], shown["slot"], shown["lag"]
    if called.options.json:
        screen.dump({"positions": at, "lag": lag, "slot": slot, "queue": shown["queue"], "unseen": shown["unseen"]})
        return _exit(now)
    for what, why in shown["unseen"].items():
        screen.say(f"The {what} cannot be seen: {why}")
    if at is not None:
        places = ("confirmed", "applied", "staged", "source")
        lsns = [at[f"{place}_lsn"] for place in places]
        rows = [
            (place, lsn or "-", _distance(lsn, following))
            for place, lsn, following in zip(places, lsns, [*lsns[1:], None], strict=True)
        ]
        screen.table(("position", "LSN", "to the next"), rows, right=("to the next",))
        if lag["bytes"] is not None:
            screen.say(f"Behind the source: {duration(lag['s'])}, {screen.size(lag['bytes'])} of WAL")
        if at["held_back_by"]:
            screen.say(f"Not confirmed further for: {listed(at['held_back_by'], 5)}")
    if slot is not None:
        limit = "no limit" if slot["limit_bytes"] is None else f"lost at {screen.size(slot['limit_bytes'])}"
        screen.say(
            f'Slot "{slot["name"]}" keeps {screen.size(slot["retained_bytes"])} of WAL ({slot["wal_status"]}, {limit})'
        )
    return _exit(now)


def plan(called: Invocation) -> int:
    """Print what the next merge would take, what it would leave, and why."""
    from tidemark.observe import next_plan

    with called.open_ledger() as book:
        backlogs = next_plan.read(book, called.config, datetime.now(UTC))
    if called.options.json:
        screen.dump(to_builtins(backlogs))
        return 0
    taken = [backlog for backlog in backlogs if not backlog.why_not]
    if not backlogs:
        screen.say("Nothing is staged that is not merged: the next merge starts no Spark application.")
        return 0
    if taken:
        total = counted(sum(backlog.changes for backlog in taken), "change")
        size = screen.size(sum(backlog.bytes for backlog in taken))
        screen.say(f"The next merge takes {total} of {counted(len(taken), 'table')}, {size}:")
    else:
        screen.say("The next merge has nothing to do:")
    screen.table(
        ("table", "batches", "changes", "size", "chunks", "from", "to", "left, because"),
        [
            (
                *(backlog.table, str(backlog.batches), screen.number(backlog.changes), screen.size(backlog.bytes)),
                *(str(backlog.chunks or "-"), str(backlog.start_lsn), str(backlog.end_lsn), backlog.why_not),
            )
            for backlog in backlogs
        ],
        right=("batches", "changes", "size", "chunks"),
    )
    return 0


def _exit(status: Status) -> int:
    return EXIT[status.health.worst or "ok"]


def _fits(row: dict[str, Any], pattern: str | None) -> bool:
    return pattern is None or pattern == row["table"] or fnmatch(row["name"], pattern)


def _distance(lower: str | None, upper: str | None) -> str:
    if lower is None or upper is None:
        return ""
    return screen.size(max(0, Lsn.parse(upper) - Lsn.parse(lower)))


def _table_lines(rows: list[dict[str, Any]], now: str) -> None:
    screen.table(
        ("table", "state", "rows", "last change", "applied", "waiting", "proven", "size", ""),
        [
            (
                *(row["name"], row["state"], screen.number(row["rows"]), screen.ago(row["changed_at"], now)),
                *(row["applied_lsn"], _waiting(row) or "-", _proven(row, now) or "-"),
                *(screen.size(row["bytes"]), row["why"]),
            )
            for row in rows
        ],
        right=("rows", "size"),
        severities=[row["severity"] for row in rows],
    )


def _waiting(row: dict[str, Any]) -> str:
    """The staged changes of a table that wait for a merge, the holder that they wait for, and when the table is due."""
    if not row["waiting_batches"]:
        return ""
    waiting = f"{counted(row['waiting_changes'], 'change')} in {counted(row['waiting_batches'], 'batch')}"
    held = f", held by {row['held_by']}" if row["held_by"] else ""
    return f"{waiting}{held}" + (f", due at {moment(datetime.fromisoformat(row['due_at']))}" if row["due_at"] else "")


def _proven(row: dict[str, Any], now: str) -> str:
    if row["verified_at"] is not None:
        return f"{screen.ago(row['verified_at'], now)}, through {row['verified_through']}"
    return f"{row['proven_parts']} of {counted(row['parts'], 'part')}" if row["parts"] else ""


def _one_table(called: Invocation, row: dict[str, Any], now: str) -> None:
    from tidemark.ledger.captured import table_details

    with called.open_ledger() as book:
        details = table_details.read(book, row["table"])
    assert details is not None
    view = _view(called, details.row)
    more = status_json.details_to_json(called.config, details)
    error, delta = row["error"], more["delta"]
    facts = [
        ("state", f"{row['state']}, since {screen.ago(row['since'], now)}"),
        ("error", f"{error['kind']}: {error['message']}" if error else ""),
        *(("", way) for way in more["ways"]),
        ("paused by", row["paused_by"] or ""),
        ("needs a backfill", row["needs_backfill"] or ""),
        ("differs", row["differences"]),
        ("applied", f"{row['applied_lsn']}, last change {screen.ago(row['changed_at'], now)}"),
        ("waiting", _waiting(row)),
        ("proven", _proven(row, now)),
        *_merged(more["merges"]),
        *((one["kind"], _size_of(one, now)) for one in delta),
        ("did not fit", ", ".join(f"{column} ({count})" for column, count in more["unfit"].items())),
        ("not captured", ", ".join(f"{one['column']} ({one['why']})" for one in more["not_captured"])),
        ("holes", ", ".join(f"{column} ({count})" for column, count in more["holes"].items())),
        *(
            (f"{change['decided']} {screen.ago(change['at'], now)}", _change(change))
            for change in more["definition_changes"]
        ),
        *((f"version {version['version']}", "; ".join(version["changed"])) for version in more["versions"]),
    ]
    screen.table((row["name"], ""), [(name, value) for name, value in facts if value], severities=())
    if view:
        screen.say("", view)


def _view(called: Invocation, row: TableRow) -> str:
    """The view that computes the generated columns that are not captured, or the reason why the source cannot be
    read."""
    import psycopg

    from tidemark.observe import generated_columns

    try:
        return generated_columns.view(called.config, row, source=called.source)
    except (psycopg.Error, TidemarkError) as failed:
        return f"The expressions of its generated columns cannot be read: {type(failed).__name__}."


def _merged(merges: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The steps of the table's last merge, each with its way and reason."""
    if not merges:
        return []
    steps = [(f"{one['step']} merged by", f"{one['way']}: {one['why']}") for one in merges[0]["steps"]]
    return [*steps, *(("left to Spark", each) for each in merges[0]["fall_backs"])]


def _change(change: dict[str, Any]) -> str:
    by = f", by {change['by']}" if change["by"] else ""
    return f"{change['reason']} (at {change['lsn']}{by})"


def _size_of(delta: dict[str, Any], now: str) -> str:
    files = counted(delta["files"], "file")
    seen = screen.ago(delta["as_of"], now)
    return f"{screen.number(delta['rows'])} rows, {screen.size(delta['bytes'])} in {files}, seen {seen}"
