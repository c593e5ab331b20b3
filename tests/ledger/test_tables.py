"""R6: when a table is parked, tried again, and merging again."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tidemark.ledger import tables
from tidemark.ledger.generations import Generation
from tidemark.ledger.tables import TableRow

Book = psycopg.Connection[Any]
RETRY = {"kind": "Conflict", "move": "RETRY", "message": "a conflict"}
BROKEN = {"kind": "TableBroken", "move": "FIX_TARGET", "message": "it is broken"}


@pytest.fixture(autouse=True)
def known(book: Book, generation: Generation) -> None:
    tables.add(book, "shop", "s.a")


def row(book: Book) -> TableRow:
    found = tables.one(book, "shop", "s.a")
    assert found is not None
    return found


def test_an_error_that_is_not_retry_parks_at_once(book: Book) -> None:
    assert tables.failed(book, "shop", "s.a", BROKEN, park_after=3)
    assert (row(book).state, row(book).error) == ("parked", BROKEN)
    assert tables.due(book, "shop", 0) == set()


def test_retry_errors_park_after_that_many_runs_in_a_row(book: Book) -> None:
    assert not tables.failed(book, "shop", "s.a", RETRY, park_after=3)
    assert not tables.failed(book, "shop", "s.a", RETRY, park_after=3)
    assert row(book).state == "merging"
    assert tables.failed(book, "shop", "s.a", RETRY, park_after=3)
    assert row(book).state == "parked"
    assert not tables.failed(book, "shop", "s.a", RETRY, park_after=3)


def test_a_success_between_starts_the_count_again(book: Book) -> None:
    tables.failed(book, "shop", "s.a", RETRY, park_after=2)
    tables.succeeded(book, "shop", "s.a", {})
    assert not tables.failed(book, "shop", "s.a", RETRY, park_after=2)


def test_a_table_parked_after_retry_errors_is_tried_again_in_time(book: Book) -> None:
    tables.failed(book, "shop", "s.a", RETRY, park_after=1)
    assert tables.due(book, "shop", 3600) == set()
    book.execute("UPDATE tidemark.tables SET tried_at = tried_at - interval '3601 s'")
    assert tables.due(book, "shop", 3600) == {"s.a"}
    tables.failed(book, "shop", "s.a", RETRY, park_after=1)
    assert tables.due(book, "shop", 3600) == set()
    book.execute("UPDATE tidemark.tables SET tried_at = tried_at - interval '3601 s'")
    tables.succeeded(book, "shop", "s.a", {})
    assert (row(book).state, row(book).error) == ("merging", None)


def test_a_late_success_does_not_end_a_park_that_somebody_must_mend(book: Book) -> None:
    tables.park(book, "shop", "s.a", BROKEN)
    tables.succeeded(book, "shop", "s.a", {})
    assert (row(book).state, row(book).error) == ("parked", BROKEN)


def test_a_late_retry_error_does_not_hide_why_a_table_is_parked(book: Book) -> None:
    tables.park(book, "shop", "s.a", BROKEN)
    assert not tables.failed(book, "shop", "s.a", RETRY, park_after=1)
    assert row(book).error == BROKEN
    assert tables.due(book, "shop", 0) == set()


def test_a_park_is_notified_once(book: Book) -> None:
    tables.park(book, "shop", "s.a", BROKEN)
    assert tables.notified(book, "shop", "s.a")
    assert not tables.notified(book, "shop", "s.a")
    tables.unpark(book, "shop", "s.a")
    assert not tables.notified(book, "shop", "s.a")
    tables.park(book, "shop", "s.a", BROKEN)
    assert tables.notified(book, "shop", "s.a")


def test_unpark_says_whether_there_was_something_to_unpark(book: Book) -> None:
    assert not tables.unpark(book, "shop", "s.a")
    tables.park(book, "shop", "s.a", BROKEN)
    assert tables.unpark(book, "shop", "s.a")
    assert (row(book).state, row(book).error, row(book).failed_runs) == ("merging", None, 0)
    assert not tables.unpark(book, "shop", "s.unknown")


def test_a_mark_that_a_table_has_stays(book: Book) -> None:
    tables.mark_needs_backfill(book, "shop", "s.a", "existing_rows", "rows from before")
    tables.mark_needs_backfill(book, "shop", "s.a", tables.GAP, "a gap")
    tables.mark_needs_backfill(book, "shop", "s.a", "rewritten", "a column was rewritten")
    assert (row(book).backfill_kind, row(book).backfill_reason) == (tables.GAP, "a gap")
    tables.mark_needs_backfill(book, "shop", "s.a", "existing_rows", "rows from before")
    assert row(book).backfill_kind == tables.GAP
    tables.clear_needs_backfill(book, "shop", "s.a")
    assert (row(book).needs_backfill, row(book).backfill_reason) == (False, None)


def test_holes_are_summed_and_mark_the_table(book: Book) -> None:
    tables.succeeded(book, "shop", "s.a", {"body": 2})
    tables.succeeded(book, "shop", "s.a", {"body": 1, "title": 4})
    tables.succeeded(book, "shop", "s.a", {})
    assert row(book).holes == {"body": 3, "title": 4}
    assert row(book).backfill_kind == tables.HOLES
    assert "3 in body, 4 in title" in str(row(book).backfill_reason)
