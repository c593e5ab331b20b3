"""R3: which position may be confirmed, as the ledger alone says."""

from __future__ import annotations

import pytest

from tests.ledger.conftest import open_at
from tests.support.manifests import manifest_of, path_of
from tidemark.errors import GenerationMissing
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger.captured import backfill_marks, merge_states
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.staged import applied_positions, batches, positions
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn

Book = Ledger
ERROR = ErrorRecord("TableBroken", "FIX_TARGET", "it is broken")


@pytest.fixture(autouse=True)
def staged(book: Book, lease: Lease, generation: Generation) -> None:
    """a is in [100, 200) and [300, 400), b in [200, 300), nothing in [400, 500)."""
    for manifest in (
        manifest_of(100, 200, "s.a"),
        manifest_of(200, 300, "s.b"),
        manifest_of(300, 400, "s.a"),
        manifest_of(400, 500),
    ):
        batches.register(book, lease, manifest, path_of(manifest))


def rise(book: Book, table: str, history: int | None, current: int | None) -> bool:
    """Whether its applied position moved."""
    reached = (None if history is None else Lsn(history), None if current is None else Lsn(current))
    risen = positions.rise(book, 1, {table: reached})[table]
    return risen.before != risen.after


def test_nothing_applied_confirms_nothing(book: Book) -> None:
    assert applied_positions.confirmable(book) == Lsn(100)
    assert applied_positions.held_back_by(book) == {"s.a": Lsn(100), "s.b": Lsn(200)}


def test_a_table_is_applied_up_to_just_before_its_next_untreated_batch(book: Book) -> None:
    rise(book, "s.a", 200, 200)
    assert applied_positions.applied(book) == {"s.a": Lsn(300), "s.b": Lsn(200)}
    assert applied_positions.confirmable(book) == Lsn(200)
    rise(book, "s.b", 300, 300)
    assert applied_positions.applied(book) == {"s.a": Lsn(300), "s.b": Lsn(500)}
    assert applied_positions.confirmable(book) == Lsn(300)


def test_everything_applied_confirms_what_is_staged(book: Book) -> None:
    rise(book, "s.a", 400, 400)
    rise(book, "s.b", 300, 300)
    assert applied_positions.confirmable(book) == Lsn(500)
    assert applied_positions.held_back_by(book) == {}


@pytest.mark.parametrize(("history", "current"), [(400, 200), (200, 400), (400, None), (None, 400)])
def test_history_without_current_is_not_applied(book: Book, history: int | None, current: int | None) -> None:
    rise(book, "s.b", 300, 300)
    rise(book, "s.a", history, current)
    assert applied_positions.confirmable(book) == (Lsn(100) if None in (history, current) else Lsn(300))


def test_parked_and_deferred_tables_count_as_staged(book: Book) -> None:
    rise(book, "s.b", 300, 300)
    merge_states.park(book, "s.a", ERROR)
    assert applied_positions.confirmable(book) == Lsn(500)
    assert applied_positions.applied(book)["s.a"] == Lsn(100)
    merge_states.unpark(book, "s.a")
    assert applied_positions.confirmable(book) == Lsn(100)
    book.execute("""UPDATE tidemark.tables SET state = 'deferred' WHERE "table" = 's.a'""")
    assert applied_positions.confirmable(book) == Lsn(500)


def test_a_table_that_needs_a_backfill_holds_like_any_other(book: Book) -> None:
    rise(book, "s.b", 300, 300)
    backfill_marks.mark(book, "s.a", backfill_marks.GAP, "a gap")
    assert applied_positions.confirmable(book) == Lsn(100)


def test_positions_only_rise(book: Book) -> None:
    assert rise(book, "s.a", 400, 400)
    assert not rise(book, "s.a", 200, 200)
    assert not rise(book, "s.a", None, None)
    assert positions.all_of(book, 1)["s.a"].applied_lsn == Lsn(400)


def test_a_position_between_two_ends_leaves_the_batch_untreated(book: Book) -> None:
    rise(book, "s.b", 300, 300)
    rise(book, "s.a", 350, 350)
    assert applied_positions.applied(book)["s.a"] == Lsn(300)


def test_batches_of_an_older_generation_hold_nothing_of_the_new_slot(book: Book, lease: Lease) -> None:
    open_at(book, lease, 2, Lsn(1000))
    assert applied_positions.confirmable(book) == Lsn(1000)
    manifest = manifest_of(1000, 1100, "s.a", generation=2)
    batches.register(book, lease, manifest, path_of(manifest))
    rise(book, "s.a", 2000, 2000)
    assert applied_positions.confirmable(book) == Lsn(1000)


def test_another_pipeline_has_positions_of_its_own(book: Book) -> None:
    with pytest.raises(GenerationMissing, match="other"):
        applied_positions.confirmable(Ledger(book.connection, "other"))
