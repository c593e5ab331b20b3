"""What is kept of snapshots when a standby is promoted: evidence only where the new timeline has what they saw (R7)."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from sandbox.services.postgres import wait_for
from tests.support.backfills import HALVES, backfill_of, chunk_of, claim_of, open_backfill, record
from tests.support.manifests import manifest_of, path_of
from tidemark.errors import LeaseLost
from tidemark.ledger import leases
from tidemark.ledger.captured import backfill_marks, joins, tables
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.reading import backfills, chunks
from tidemark.ledger.staged import batches, generations
from tidemark.ledger.staged.generations import FollowedPromotion, Generation
from tidemark.lsn import Lsn, WalPoint

Book = Ledger
LEFT = Lsn(1000)
BELOW, ABOVE = Lsn(999), Lsn(1001)
PROMOTED = WalPoint(2, Lsn(1500))
NOW = "900:900:"


def follow(book: Book, lease: Lease) -> FollowedPromotion:
    return generations.follow(book, lease, 1, left_lsn=LEFT, snapshot=NOW, seen_at=PROMOTED)


def states(book: Book, backfill: str = "b1") -> dict[str, tuple[bool, bool]]:
    """Per chunk: whether it is rejected, and whether it is claimed."""
    recorded = chunks.of_backfill(book, backfill)
    return {c.chunk: (c.rejected is not None, c.claimed_lsn is not None) for c in recorded}


@pytest.mark.parametrize(("read_lsn", "lost"), [(BELOW, False), (LEFT, False), (ABOVE, True)])
def test_an_unclaimed_chunk_counts_up_to_where_the_timeline_was_left(
    ledger: str, book: Book, lease: Lease, generation: Generation, read_lsn: Lsn, lost: bool
) -> None:
    backfill = open_backfill(book, "s.a", "b1", *HALVES)
    assert record(ledger, chunk_of(backfill, "1-1", upper=("10",), read_lsn=read_lsn), done=True)
    assert follow(book, lease).chunks == lost
    assert states(book) == {"1-1": (lost, False)}
    again = [(r.lower, r.upper) for r in chunks.ranges_of(book, "b1") if not r.done and r.range > 2]
    assert again == ([(None, ("10",))] if lost else [])
    assert generations.required(book).timeline == 2


def test_a_claimed_chunk_stays_what_it_is(ledger: str, book: Book, lease: Lease, generation: Generation) -> None:
    """Its watermark is staged, and what is staged lies below where the timeline was left, else the generation ends."""
    backfill = open_backfill(book, "s.a")
    chunk = chunk_of(backfill, read_lsn=Lsn(120))
    assert record(ledger, chunk, done=True)
    manifest = manifest_of(100, 200, claims={"s.a": (claim_of(chunk, 150),)})
    assert batches.register(book, lease, manifest, path_of(manifest))
    assert follow(book, lease).chunks == 0
    assert states(book) == {"1-1": (False, True)}


def test_a_chunk_from_before_its_point_was_kept_is_read_again(
    ledger: str, book: Book, lease: Lease, generation: Generation
) -> None:
    backfill = open_backfill(book, "s.a")
    assert record(ledger, chunk_of(backfill, read_lsn=BELOW), done=True)
    book.execute("UPDATE tidemark.chunks SET timeline = NULL")
    assert follow(book, lease).chunks == 1


def test_a_backfill_whose_snapshot_was_lost_begins_anew_with_one_of_now(
    book: Book, lease: Lease, generation: Generation
) -> None:
    """Its sweep would take what the new primary writes under the lost ids for seen, and remove it."""
    open_backfill(book, "s.a", "lost", snapshot_lsn=ABOVE)
    open_backfill(book, "s.b", "kept", snapshot_lsn=LEFT)
    open_backfill(book, "s.c", "old", snapshot_lsn=None)
    assert follow(book, lease).backfills == ("s.a", "s.c")
    snapshots = {b.backfill: (b.state, b.snapshot, b.snapshot_lsn) for b in backfills.all_open(book)}
    assert snapshots == {
        "lost": ("open", NOW, PROMOTED.lsn),
        "kept": ("open", "700:700:", LEFT),
        "old": ("open", NOW, PROMOTED.lsn),
    }


def test_a_reader_that_is_left_behind_on_the_old_primary_records_nothing(
    ledger: str, book: Book, lease: Lease, generation: Generation
) -> None:
    backfill = open_backfill(book, "s.a", "b1", *HALVES)
    follow(book, lease)
    assert not record(ledger, chunk_of(backfill, "1-1", upper=("10",), read_lsn=ABOVE), done=True)
    assert record(ledger, chunk_of(backfill, "1-1", upper=("10",), timeline=2), done=True)


def test_a_chunk_that_is_recorded_while_the_promotion_is_followed_is_not_missed(
    ledger: str, book: Book, lease: Lease, generation: Generation
) -> None:
    """It waits for the row of its backfill, and must not go on as if nothing had happened to it."""
    backfill = open_backfill(book, "s.a")
    recorded: list[bool] = []
    late = threading.Thread(
        target=lambda: recorded.append(record(ledger, chunk_of(backfill, read_lsn=ABOVE), done=True))
    )
    waits = (
        "SELECT 1 FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0 AND datname = current_database()"
    )
    with book.transaction():
        follow(book, lease)
        late.start()
        with open_ledger(ledger, "shop") as witness:
            wait_for("the reader waits", lambda: witness.execute(waits).fetchone())
    late.join()
    assert recorded == [False]
    assert states(book) == {}


def test_a_backfill_that_was_planned_on_the_old_primary_is_not_opened(
    book: Book, lease: Lease, generation: Generation
) -> None:
    follow(book, lease)
    assert not backfills.create(book, backfill_of("s.a"), HALVES)
    assert backfills.create(book, replace(backfill_of("s.a"), timeline=2), HALVES)


@pytest.mark.parametrize(
    ("judged", "lost"),
    [(WalPoint(1, BELOW), False), (WalPoint(1, ABOVE), True), (WalPoint(2, ABOVE), False)],
    ids=["below", "above", "on the new primary"],
)
def test_a_join_that_was_judged_by_what_is_lost_is_judged_anew(
    book: Book, lease: Lease, generation: Generation, judged: WalPoint, lost: bool
) -> None:
    """The table is not in the new primary's publication, or was not empty there, whatever was seen."""
    joins.join(book, "s.a", 700, judged, backfill=None)
    open_backfill(book, "s.a")
    assert follow(book, lease).tables == (("s.a",) if lost else ())
    row = tables.one(book, "s.a")
    assert row is not None
    assert (row.join_horizon is None) == lost
    assert (backfills.open_of(book, "s.a") is None) == lost


def test_a_look_that_saw_a_table_empty_is_lost_with_what_it_saw(
    book: Book, lease: Lease, generation: Generation
) -> None:
    """Its older rows were deleted in the part that is lost: on the new primary they are back, and in no stream."""
    joins.join(book, "s.a", 700, WalPoint(1, BELOW), backfill=(backfill_marks.EXISTING_ROWS, "it had rows"))
    assert joins.clear_existing_rows(book, "s.a", WalPoint(1, ABOVE))
    assert follow(book, lease).tables == ("s.a",)


def test_following_needs_the_lease(ledger: str, book: Book, lease: Lease, generation: Generation) -> None:

    with leases.hold(ledger, "shop", leases.SLOT, "drain/1"), pytest.raises(LeaseLost):
        follow(book, lease)
    assert generations.required(book).timeline == 1


def test_a_join_and_its_mark_are_there_both_or_not_at_all(
    book: Book, generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is captured with a horizon is never judged again, so its mark must not come later."""

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(joins.backfill_marks, "mark", die)
    with pytest.raises(KeyboardInterrupt):
        joins.join(book, "s.new", 700, WalPoint(1, BELOW), backfill=(backfill_marks.EXISTING_ROWS, "it had rows"))
    assert tables.one(book, "s.new") is None
