"""R6: when a table is parked, tried again, and merging again."""

from __future__ import annotations

import pytest

from tests.support.backfills import open_backfill
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.merge_result import Holes
from tidemark.ledger.captured import backfill_marks, merge_states, tables
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.connection import Ledger
from tidemark.ledger.reading import backfills
from tidemark.ledger.staged.generations import Generation

Book = Ledger
RETRY = ErrorRecord("Conflict", "RETRY", "a conflict")
BROKEN = ErrorRecord("TableBroken", "FIX_TARGET", "it is broken")


@pytest.fixture(autouse=True)
def known(book: Book, generation: Generation) -> None:
    tables.add(book, "s.a")


def row(book: Book) -> TableRow:
    table_row = tables.one(book, "s.a")
    assert table_row is not None
    return table_row


def test_an_error_that_is_not_retry_parks_at_once(book: Book) -> None:
    assert merge_states.failed(book, "s.a", BROKEN, park_after=3)
    assert (row(book).life.merge, row(book).error) == ("parked", BROKEN)
    assert merge_states.due(book, 0) == set()


def test_retry_errors_park_after_that_many_runs_in_a_row(book: Book) -> None:
    assert not merge_states.failed(book, "s.a", RETRY, park_after=3)
    assert not merge_states.failed(book, "s.a", RETRY, park_after=3)
    assert row(book).life.merge == "merging"
    assert merge_states.failed(book, "s.a", RETRY, park_after=3)
    assert row(book).life.merge == "retried"
    assert not merge_states.failed(book, "s.a", RETRY, park_after=3)


def test_a_success_between_starts_the_count_again(book: Book) -> None:
    merge_states.failed(book, "s.a", RETRY, park_after=2)
    merge_states.succeeded(book, {"s.a": None})
    assert not merge_states.failed(book, "s.a", RETRY, park_after=2)


def test_a_table_parked_after_retry_errors_is_tried_again_in_time(book: Book) -> None:
    merge_states.failed(book, "s.a", RETRY, park_after=1)
    assert merge_states.due(book, 3600) == set()
    book.execute("UPDATE tidemark.tables SET tried_at = tried_at - interval '3601 s'")
    assert merge_states.due(book, 3600) == {"s.a"}
    merge_states.failed(book, "s.a", RETRY, park_after=1)
    assert merge_states.due(book, 3600) == set()
    book.execute("UPDATE tidemark.tables SET tried_at = tried_at - interval '3601 s'")
    merge_states.succeeded(book, {"s.a": None})
    assert (row(book).life.merge, row(book).error) == ("merging", None)


def test_a_late_success_does_not_end_a_park_that_somebody_must_mend(book: Book) -> None:
    merge_states.park(book, "s.a", BROKEN)
    merge_states.succeeded(book, {"s.a": None})
    assert (row(book).life.merge, row(book).error) == ("parked", BROKEN)


def test_a_late_retry_error_does_not_hide_why_a_table_is_parked(book: Book) -> None:
    merge_states.park(book, "s.a", BROKEN)
    assert not merge_states.failed(book, "s.a", RETRY, park_after=1)
    assert row(book).error == BROKEN
    assert merge_states.due(book, 0) == set()


def test_unpark_says_whether_there_was_something_to_unpark(book: Book) -> None:
    assert not merge_states.unpark(book, "s.a")
    merge_states.park(book, "s.a", BROKEN)
    assert merge_states.unpark(book, "s.a")
    assert (row(book).life.merge, row(book).error, row(book).failed_runs) == ("merging", None, 0)
    assert not merge_states.unpark(book, "s.unknown")


def test_a_mark_that_a_table_has_stays(book: Book) -> None:
    backfill_marks.mark(book, "s.a", "existing_rows", "rows from before")
    backfill_marks.mark(book, "s.a", backfill_marks.GAP, "a gap")
    backfill_marks.mark(book, "s.a", "rewritten", "a column was rewritten")
    assert (row(book).backfill_kind, row(book).backfill_reason) == (backfill_marks.GAP, "a gap")
    backfill_marks.mark(book, "s.a", "existing_rows", "rows from before")
    assert row(book).backfill_kind == backfill_marks.GAP
    backfill_marks.clear(book, "s.a")
    assert (row(book).life.needs_backfill, row(book).backfill_reason) == (False, None)


def test_a_mark_that_stays_is_asked_for_again_all_the_same(book: Book) -> None:
    backfill_marks.mark(book, "s.a", backfill_marks.GAP, "a gap")
    first = row(book).marks
    backfill_marks.mark(book, "s.a", "rewritten", "a column was rewritten")
    again = row(book)
    assert (again.backfill_reason, again.marks) == ("a gap", first + 1)


def test_the_mark_of_holes_gives_way_to_every_other_and_takes_the_place_of_none(book: Book) -> None:
    """Else filling the holes would take away what asked for the whole table."""
    merge_states.succeeded(book, {"s.a": Holes({"body": 2}, (("1",), ("2",)))})
    backfill_marks.mark(book, "s.a", backfill_marks.EXISTING_ROWS, "rows from before")
    assert row(book).backfill_kind == backfill_marks.EXISTING_ROWS
    merge_states.succeeded(book, {"s.a": Holes({"body": 3}, (("1",),))})
    assert row(book).backfill_kind == backfill_marks.EXISTING_ROWS
    merge_states.succeeded(book, {"s.a": Holes({}, ())})
    assert row(book).backfill_kind == backfill_marks.EXISTING_ROWS


def test_holes_are_those_of_the_last_merge_that_says_something_of_them(book: Book) -> None:
    merge_states.succeeded(book, {"s.a": Holes({"body": 2, "title": 0}, (("1",), ("2",)))})
    merge_states.succeeded(book, {"s.a": Holes({"body": 1, "title": 4}, (("2",),))})
    merge_states.succeeded(book, {"s.a": None})
    assert (row(book).holes, row(book).hole_keys) == ({"body": 1, "title": 4}, [["2"]])
    assert row(book).backfill_kind == backfill_marks.HOLES
    assert "1 in body, 4 in title" in str(row(book).backfill_reason)
    merge_states.succeeded(book, {"s.a": Holes({}, ())})
    assert (row(book).holes, row(book).hole_keys, row(book).life.needs_backfill) == ({}, [], False)


def test_holes_do_not_mark_a_table_while_a_backfill_of_it_is_open_and_what_is_left_of_them_does(
    book: Book, generation: Generation
) -> None:
    open_backfill(book, "s.a")
    merge_states.succeeded(book, {"s.a": Holes({"body": 2}, (("1",), ("2",)))})
    assert (row(book).holes, row(book).life.needs_backfill) == ({"body": 2}, False)
    backfills.close(book, "b1", "enough")
    assert row(book).backfill_kind == backfill_marks.HOLES


# --- changes that the source lost -------------------------------------------------------------------------------------

KEYS = [["1"], ["2"]]


def test_lost_changes_mark_their_keys_and_those_of_a_second_loss_come_with_them(book: Book) -> None:
    backfill_marks.mark_lost(book, "s.a", "lost", KEYS)
    assert (row(book).backfill_kind, row(book).lost_keys, row(book).life.is_marked_for_good) == ("fork", KEYS, True)
    backfill_marks.mark_lost(book, "s.a", "lost again", [["2"], ["3"]])
    assert row(book).lost_keys == [["1"], ["2"], ["3"]]


@pytest.mark.parametrize("kind", [backfill_marks.GAP, backfill_marks.EXISTING_ROWS, "rewritten"])
def test_a_table_that_needs_all_its_rows_is_never_read_by_lost_keys_alone(kind: str, book: Book) -> None:
    """Whichever came first: else the keys' backfill would take the other mark away."""
    backfill_marks.mark(book, "s.a", kind, "all of it")
    backfill_marks.mark_lost(book, "s.a", "lost", KEYS)
    assert row(book).lost_keys is None
    backfill_marks.clear(book, "s.a")
    backfill_marks.mark_lost(book, "s.a", "lost", KEYS)
    backfill_marks.mark(book, "s.a", kind, "all of it")
    assert (row(book).lost_keys, row(book).life.needs_backfill) == (None, True)


def test_holes_leave_the_lost_keys_alone(book: Book) -> None:
    backfill_marks.mark_lost(book, "s.a", "lost", KEYS)
    merge_states.succeeded(book, {"s.a": Holes({"body": 2}, (("1",),))})
    assert (row(book).backfill_kind, row(book).lost_keys) == ("fork", KEYS)


def test_keys_that_moved_without_all_their_values_spread_what_was_lost(book: Book) -> None:
    backfill_marks.mark_lost(book, "s.a", "lost", KEYS)
    before = row(book).marks
    backfill_marks.spread_lost(book, ["s.b"])
    assert row(book).lost_keys == KEYS
    backfill_marks.spread_lost(book, ["s.a"])
    after = row(book)
    assert (after.lost_keys, after.life.needs_backfill) == (None, True)
    assert after.marks == before + 1


def test_columns_that_alone_may_differ_add_up_until_any_may(book: Book) -> None:

    backfill_marks.mark(book, "s.a", backfill_marks.HOLES, "holes")
    for columns, together in (((5,), [5]), ((3, 5), [3, 5])):
        backfill_marks.mark(book, "s.a", "source_changed", "columns", columns)
        assert row(book).columns_in_doubt == together
    backfill_marks.mark(book, "s.a", backfill_marks.HOLES, "holes")
    assert row(book).columns_in_doubt == [3, 5]
    backfill_marks.mark(book, "s.a", "source_changed", "any")
    backfill_marks.mark(book, "s.a", "source_changed", "columns", (3,))
    assert row(book).columns_in_doubt is None
    backfill_marks.clear(book, "s.a")
    backfill_marks.mark(book, "s.a", "source_changed", "columns", (3,))
    assert row(book).columns_in_doubt == [3]
    backfill_marks.clear(book, "s.a")
    assert row(book).columns_in_doubt is None
