"""Plans replays of tables from `history` and reads their results; starts replays of tables from staging.

A rebuild holds the leases of all its tables, so that no merge works on them. A table as of a moment is a new table and
needs no lease. The ledger is not changed: the position of `current` is in its own log, and the next plan reads it (R5).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from secrets import token_hex
from typing import Literal

from tidemark.capture import lake_folder
from tidemark.capture.drain import drain
from tidemark.errors import MomentInvalid, ReplayRefused
from tidemark.formats import layout
from tidemark.formats.replay_plan import ReplayPlan, ReplayResult, Step
from tidemark.lake import moments
from tidemark.ledger import leases, migrations
from tidemark.ledger.captured import relation_ids, replays, tables
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.staged import applied_positions, generations, positions
from tidemark.names import TableName
from tidemark.run import Run
from tidemark.storage.store import Store
from tidemark.wording import TABLE_CUTOFF, closest


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """`tables` are names as a person writes them; empty means all tables as of a moment. `moment` is an LSN or a
    time, "" for the applied position."""

    step: Step | Literal["staged"]
    tables: tuple[str, ...]
    moment: str = ""


@contextmanager
def leased_replay(run: Run, request: ReplayRequest, *, wait_s: float = 0.0) -> Iterator[ReplayPlan]:
    """Write the plan and hold its leases while the block runs. Raises ReplayRefused, LeaseTaken, or what
    `lake_folder.require` raises."""
    config = run.config
    assert request.step != "staged"
    with open_ledger(run.ledger, run.pipeline, config.application_name) as book:
        migrations.require(book.connection)
        keys = _keys(book, request)
        opened = generations.required(book)
        moment = request.moment
        if request.step == "as_of" and not moment:
            applied = applied_positions.applied(book)
            moment = str(min(applied[table] for table in keys))
    names = [leases.of_table(table) for table in keys]
    held = leases.hold(run.ledger, run.pipeline, names, run.holder, wait_s=wait_s)
    with held if request.step == "rebuild" else nullcontext():
        store = Store(config.lake, config.lake_access)
        lake_folder.require(config, store, opened)  # after the wait for the leases
        plan = ReplayPlan(
            plan=f"{run.now():%Y%m%dT%H%M%S}-{token_hex(8)}",
            pipeline=run.pipeline,
            lake=config.lake,
            step=request.step,
            keys=keys,
            generation=opened.number,
            moment=moment,
            threads=config.merge.threads,
        )
        store.write_new(layout.replay_file(run.pipeline, plan.plan), plan.to_json().encode())
        yield plan


def begin_replay(run: Run, request: ReplayRequest, *, wait_s: float = 0.0) -> list[str]:
    """Drain, and build the request's tables anew from staging from there on. Returns the ids of the new tables that
    readers do not use yet, also if an earlier try of the run began them. Raises ReplayRefused, and what a drain
    raises."""
    with open_ledger(run.ledger, run.pipeline, run.config.application_name) as book:
        migrations.require(book.connection)
        asked = _keys(book, request)
    drain(run, wait_s=wait_s, run_s=math.inf, replay=asked)
    with open_ledger(run.ledger, run.pipeline, run.config.application_name) as book:
        built = replays.unplaced(book)
    return sorted({built.get(table, table) for table in asked} & {*built.values()})


def unplaced(run: Run, asked: Collection[str]) -> dict[str, str]:
    """The new tables that readers do not use yet, each with the reason."""
    reasons = {}
    with open_ledger(run.ledger, run.pipeline, run.config.application_name) as book:
        left = {*replays.unplaced(book).values()}.intersection(asked)
        rows = {row.table: row for row in tables.all_of(book)}
    for table in sorted(left):
        error = rows[table].error
        reasons[table] = "it is not merged yet, and the next merge goes on" if error is None else error.message
    return reasons


def _keys(ledger: Ledger, request: ReplayRequest) -> dict[str, tuple[str, ...]]:
    """The request's tables with their keys. Raises one error with all problems."""
    rows = tables.all_of(ledger)
    there = {row.table for row in rows}
    called = relation_ids.names(ledger)
    captured = {row.table: called.get(row.table, TableName.parse(row.table)) for row in rows if row.life.is_captured}
    by_name = {str(name): table for table, name in captured.items()}
    versions = tables.versions_of(ledger, there)
    names = request.tables
    if not names and request.step == "as_of":
        merged = _merged(ledger)
        names = tuple(table for table in captured if table in merged)
    problems = [] if names else ["it names no table"]
    keys: dict[str, tuple[str, ...]] = {}
    for name in names:
        try:
            typed = str(TableName.parse(name))
        except ValueError:
            typed = name
        table = by_name.get(name) or by_name.get(typed, typed)
        if not versions.get(table):
            meant = closest(table, versions, cutoff=TABLE_CUTOFF)
            problems.append(f"nothing of {name} was ever merged" + (f" (did you mean {meant}?)" if meant else ""))
            continue
        newest = versions[table][-1]
        if request.step == "rebuild" and not newest.has_current:
            problems.append(f"{name} has no identity, and so no current")
        keys[table] = newest.key
    if request.moment and request.step == "rebuild":
        problems.append("a rebuild goes up to where history is, and takes no moment")
    elif request.moment and request.step == "staged":
        problems.append("a replay from staging goes up to what is staged, and takes no moment")
    elif request.moment:
        try:
            moments.parse(request.moment)
        except MomentInvalid:
            problems.append("the moment is neither an LSN (16/B374D848) nor a time with its zone")
    if problems:
        raise ReplayRefused(pipeline=ledger.pipeline, problems="; ".join(problems))
    return keys


def _merged(ledger: Ledger) -> set[str]:
    """The tables with a history in the lake."""
    numbers = range(1, generations.required(ledger).number + 1)
    reached = [positions.all_of(ledger, number) for number in numbers]
    return {table for of in reached for table, position in of.items() if position.history_lsn is not None}


def take_result(run: Run, plan: ReplayPlan) -> ReplayResult | None:
    """The application's result; None if it left none. Its files are deleted."""
    store = Store(run.config.lake, run.config.lake_access)
    folder = layout.replay_folder(plan.pipeline, plan.plan)
    try:
        return ReplayResult.from_json(store.read(f"{folder}/result.json"))
    except (FileNotFoundError, ValueError):
        return None
    finally:
        store.delete(folder)
