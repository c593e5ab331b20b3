from __future__ import annotations

import pytest

from tests.ledger.conftest import open_at
from tidemark.errors import ChangesGone, GenerationMissing, LeaseLost
from tidemark.ledger import leases
from tidemark.ledger.captured import backfill_marks, joins, tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import SLOT, Lease
from tidemark.ledger.staged import generations
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn, WalPoint

Book = Ledger
GONE = ChangesGone(slot="shop", confirmed_lsn=Lsn(500), staged_lsn=Lsn(100), generation=1)


def test_before_the_first_run_there_is_none(book: Book) -> None:
    assert generations.current(book) is None
    with pytest.raises(GenerationMissing, match="shop"):
        generations.required(book)


def test_a_gap_marks_every_table_and_its_error_is_handed_out_once(
    book: Book, lease: Lease, generation: Generation
) -> None:
    joins.join(book, "s.a", 7, WalPoint(1, Lsn(50)), backfill=None)
    open_at(book, lease, 2, Lsn(500), backfill_kind=backfill_marks.GAP, error=GONE)
    (marked,) = tables.all_of(book)
    assert (marked.life.needs_backfill, marked.backfill_kind) == (True, backfill_marks.GAP)
    assert marked.join_horizon is None
    raised = generations.take_error(book, lease)
    assert isinstance(raised, ChangesGone)
    assert str(raised) == str(GONE)
    assert generations.take_error(book, lease) is None


def test_a_generation_is_never_opened_below_another(book: Book, lease: Lease, generation: Generation) -> None:
    with pytest.raises(ValueError, match="not above"):
        open_at(book, lease, 1, Lsn(500))


def test_opening_one_needs_the_lease(ledger: str, book: Book, lease: Lease) -> None:
    with leases.hold(ledger, "shop", SLOT, "drain/1"), pytest.raises(LeaseLost):
        open_at(book, lease, 1, Lsn(100))
    assert generations.current(book) is None
