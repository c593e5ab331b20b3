"""Every transition of a table's life on a real ledger, and every one that there is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemark.errors import TableLifeBroken
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.merge_result import Holes
from tidemark.ledger.captured import backfill_marks, joins, merge_states, tables
from tidemark.ledger.captured.table_lives import step
from tidemark.ledger.connection import Ledger
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn, WalPoint
from tidemark.schema import table_life
from tidemark.schema.table_life import STATES, TRANSITIONS, Machine

TABLE = "s.a"
SEEN = WalPoint(1, Lsn(50))
RETRY = ErrorRecord("Conflict", "RETRY", "a conflict")
BROKEN = ErrorRecord("TableBroken", "FIX_TARGET", "it is broken")

_PARKED = "state = 'parked', paused_by = NULL, error = "

# How the ledger's row is made to be in a state.
PUT: dict[str, str] = {
    table_life.JOINING: "captured = true, join_horizon = NULL, forgotten_at = NULL",
    table_life.CAPTURED: "captured = true, join_horizon = 7, forgotten_at = NULL",
    table_life.LEFT: "captured = false, join_horizon = NULL, forgotten_at = NULL",
    table_life.FORGOTTEN: "captured = false, join_horizon = NULL, forgotten_at = now()",
    table_life.MERGING: "state = 'merging', paused_by = NULL, error = NULL",
    table_life.DEFERRED: "state = 'deferred', paused_by = NULL, error = NULL",
    table_life.PAUSED: "state = 'paused', paused_by = 'somebody', error = NULL",
    table_life.PARKED: _PARKED + """'{"kind": "B", "move": "FIX_TARGET", "message": "m"}'""",
    table_life.RETRIED: _PARKED + """'{"kind": "C", "move": "RETRY", "message": "m"}'""",
    table_life.COMPLETE: "needs_backfill = false, backfill_kind = NULL, backfill_reason = NULL",
    table_life.EXISTING_ROWS: "needs_backfill = true, backfill_kind = 'existing_rows', backfill_reason = 'r'",
    table_life.HOLES: "needs_backfill = true, backfill_kind = 'holes', backfill_reason = 'r'",
    table_life.NEEDS_BACKFILL: "needs_backfill = true, backfill_kind = 'gap', backfill_reason = 'r'",
}

# What the ledger does for an event.
HAPPENS: dict[tuple[Machine, str], Callable[[Ledger], object]] = {
    ("capture", "stage"): lambda book: tables.add(book, TABLE),
    ("capture", "join"): lambda book: joins.join(book, TABLE, 7, SEEN, backfill=None),
    ("capture", "judge_anew"): lambda book: joins.judge_anew(book, TABLE, "a promotion"),
    ("capture", "leave"): lambda book: joins.leave(book, TABLE),
    ("capture", "forget"): lambda book: joins.forget(book, TABLE),
    ("merge", "defer"): lambda book: merge_states.defer(book),
    ("merge", "merge_always"): lambda book: merge_states.merge_always(book),
    ("merge", "park"): lambda book: merge_states.park(book, TABLE, BROKEN),
    ("merge", "park_for_retry"): lambda book: merge_states.failed(book, TABLE, RETRY, park_after=1),
    ("merge", "fail"): lambda book: merge_states.failed(book, TABLE, RETRY, park_after=99),
    ("merge", "merge"): lambda book: merge_states.succeeded(book, {TABLE: None}),
    ("merge", "unpark"): lambda book: merge_states.unpark(book, TABLE),
    ("merge", "pause"): lambda book: merge_states.pause(book, TABLE, "somebody"),
    ("merge", "resume"): lambda book: merge_states.resume(book, TABLE),
    ("target", "miss_rows"): lambda book: backfill_marks.mark(book, TABLE, backfill_marks.EXISTING_ROWS, "rows"),
    ("target", "miss_values"): lambda book: merge_states.succeeded(book, {TABLE: Holes({"body": 1}, (("1",),))}),
    ("target", "need_backfill"): lambda book: backfill_marks.mark(book, TABLE, backfill_marks.GAP, "a gap"),
    ("target", "see_empty"): lambda book: joins.clear_existing_rows(book, TABLE, SEEN),
    ("target", "fill_holes"): lambda book: merge_states.succeeded(book, {TABLE: Holes({}, ())}),
    ("target", "backfill"): lambda book: backfill_marks.clear(book, TABLE),
}
# Of these the ledger asks first, and does nothing where there is nothing to do.
ASKED_FIRST = {
    ("capture", "stage"),
    ("merge", "defer"),
    ("merge", "merge_always"),
    ("merge", "unpark"),
    ("merge", "resume"),
    ("target", "see_empty"),
    ("target", "fill_holes"),
}

ALLOWED = [(m, e, a, b) for m, events in TRANSITIONS.items() for e, pairs in events.items() for a, b in pairs.items()]
FORBIDDEN = [
    (machine, event, state)
    for machine, events in TRANSITIONS.items()
    for event, pairs in events.items()
    for state in STATES[machine]
    if state not in pairs
]


@pytest.fixture(autouse=True)
def opened(generation: Generation) -> None:
    """The pipeline has a row, so its tables may have one."""


def put(book: Ledger, machine: Machine, state: str) -> None:
    book.execute("DELETE FROM tidemark.tables")
    if state != table_life.UNKNOWN:
        tables.add(book, TABLE)
        book.execute(f"UPDATE tidemark.tables SET {PUT[state]}".encode())
    assert state_of(book, machine) == state


def state_of(book: Ledger, machine: Machine) -> str:
    row = tables.one(book, TABLE)
    return table_life.UNKNOWN if row is None else str(getattr(row.life, machine))


def lives_of(book: Ledger) -> set[tuple[str, str, str]]:
    return {(row.life.capture, row.life.merge, row.life.target) for row in tables.all_of(book)}


def test_every_event_leads_where_the_table_of_transitions_says(book: Ledger) -> None:
    for machine, event, before, after in ALLOWED:
        put(book, machine, before)
        others = lives_of(book)
        HAPPENS[machine, event](book)
        assert (event, before, state_of(book, machine)) == (event, before, after)
        if before == after:
            assert lives_of(book) == others


def test_an_event_that_does_not_fit_changes_nothing(book: Ledger) -> None:
    assert {(machine, event) for machine, event, _, _ in ALLOWED} == HAPPENS.keys()
    for machine, event, state in FORBIDDEN:
        put(book, machine, state)
        before = lives_of(book)
        if (machine, event) in ASKED_FIRST:
            HAPPENS[machine, event](book)
        else:
            with pytest.raises(TableLifeBroken, match=f"{event} .*{state}"):
                HAPPENS[machine, event](book)
        assert lives_of(book) == before


def test_no_step_begins_where_its_event_does_not_fit(book: Ledger) -> None:
    for machine, event, state in FORBIDDEN:
        put(book, machine, state)
        with pytest.raises(TableLifeBroken, match=event), step(book, machine, event, [TABLE]):
            pytest.fail("the block was entered")


def test_a_write_that_ends_elsewhere_is_rolled_back(book: Ledger) -> None:
    for machine, event, before, after in ALLOWED:
        for elsewhere in set(STATES[machine]) - {after, table_life.UNKNOWN}:
            put(book, machine, before)
            unchanged = lives_of(book)
            with pytest.raises(TableLifeBroken, match=f"{after}, and came to {elsewhere}"):
                _put_by_a_step(book, machine, event, elsewhere)
            assert lives_of(book) == unchanged


def _put_by_a_step(book: Ledger, machine: Machine, event: str, state: str) -> None:
    with step(book, machine, event, [TABLE]):
        tables.add(book, TABLE)
        book.execute(f"UPDATE tidemark.tables SET {PUT[state]}".encode())


def test_one_table_that_does_not_fit_stops_the_step_of_all(book: Ledger) -> None:
    tables.add(book, "s.b")
    tables.add(book, TABLE)
    joins.leave(book, TABLE)
    with pytest.raises(TableLifeBroken, match=TABLE), step(book, "capture", "leave", [TABLE, "s.b"]):
        pytest.fail("the block was entered")


def test_beginning_anew_is_three_steps_or_none(book: Ledger) -> None:
    joins.join(book, TABLE, 7, SEEN, backfill=None)
    assert not joins.restart(book, TABLE)
    assert lives_of(book) == {("captured", "merging", "complete")}
    merge_states.park(book, TABLE, BROKEN)
    assert joins.restart(book, TABLE)
    assert lives_of(book) == {("joining", "merging", "needs_backfill")}
