"""What is read of existing rows, and how far: the rows behind a backfill."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from msgspec import structs

from sandbox.services.postgres import wait_for
from tests.ledger.conftest import open_at
from tests.support.backfills import HALVES, WAITING, backfill_of, chunk_of, open_backfill, record
from tests.support.manifests import manifest_of, path_of, schema_of
from tidemark.errors import LeaseLost
from tidemark.ledger import leases
from tidemark.ledger.captured import schema_versions, tables
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.reading import backfill_progress, backfills, chunks
from tidemark.ledger.reading.backfills import Range
from tidemark.ledger.staged import batches
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn

Book = Ledger


# --- opening and ending -----------------------------------------------------------------------------------------------


def test_a_table_has_one_open_backfill_at_most(book: Book, generation: Generation) -> None:
    open_backfill(book, "s.a")
    assert not backfills.create(book, backfill_of("s.a", "b2"), HALVES)
    assert backfills.create(book, backfill_of("s.b", "b3"), HALVES)
    assert [b.backfill for b in backfills.all_open(book)] == ["b1", "b3"]
    assert backfills.close(book, "b1", "another one takes its place")
    assert not backfills.close(book, "b1", "again")
    assert backfills.create(book, backfill_of("s.a", "b2"), HALVES)
    opened = backfills.open_of(book, "s.a")
    assert opened is not None
    assert (opened.backfill, opened.state, opened.whole_table) == ("b2", "open", True)
    closed = backfills.one(book, "b1")
    assert closed is not None
    assert (closed.state, closed.state_reason) == ("closed", "another one takes its place")


def test_a_backfill_belongs_to_the_open_generation(book: Book, lease: Lease, generation: Generation) -> None:
    backfill = open_backfill(book, "s.a")
    open_at(book, lease, 2, Lsn(500))
    closed = backfills.one(book, "b1")
    assert closed is not None
    assert (closed.state, closed.state_reason) == ("closed", "generation 2 was opened")
    assert not backfills.create(book, replace(backfill, backfill="b2"), HALVES)
    assert backfills.create(book, replace(backfill, backfill="b2", generation=2), HALVES)


def test_a_backfill_opened_while_a_generation_opens_is_closed_or_refused(
    ledger: str, book: Book, lease: Lease, generation: Generation
) -> None:
    """The one that opens a generation waits for the one that opens a backfill, and closes it then."""
    opened = threading.Event()

    def open_another() -> None:
        with open_ledger(ledger, "shop") as mine:
            open_at(mine, lease, 2, Lsn(500))
            opened.set()

    other = threading.Thread(target=open_another)
    with book.transaction():
        assert backfills.create(book, backfill_of("s.a"), HALVES)
        other.start()
        assert not opened.wait(0.3)
    other.join()
    assert backfills.all_open(book) == []


def test_a_backfill_that_waited_for_a_generation_to_open_is_refused(
    ledger: str, book: Book, lease: Lease, generation: Generation
) -> None:
    created: list[bool] = []

    def create() -> None:
        with open_ledger(ledger, "shop") as mine:
            created.append(backfills.create(mine, backfill_of("s.a"), HALVES))

    other = threading.Thread(target=create)
    with book.transaction(), open_ledger(ledger, "shop") as witness:
        open_at(book, lease, 2, Lsn(500))
        other.start()
        wait_for("it waits for a lock", lambda: witness.execute(WAITING).fetchone())
    other.join()
    assert created == [False]


def test_another_run_reads_on(book: Book, generation: Generation) -> None:
    open_backfill(book, "s.a", "b1", *HALVES)
    assert chunks.free_ranges(book, "backfill2") == []
    assert backfills.adopt(book, "b1", "backfill2")
    assert [b.backfill for b in backfills.of_run(book, "backfill2")] == ["b1"]
    assert [r.range for r in chunks.free_ranges(book, "backfill2")] == [1, 2]
    backfills.close(book, "b1", "enough")
    assert not backfills.adopt(book, "b1", "backfill3")
    assert chunks.free_ranges(book, "backfill2") == []


def test_a_backfill_of_a_clock_that_was_ahead_was_not_tried_just_now(book: Book, generation: Generation) -> None:
    open_backfill(book, "s.a")
    assert backfills.tables_tried_within(book, 600) == {"s.a"}
    book.execute("UPDATE tidemark.backfills SET active_at = active_at + interval '1 year'")
    assert backfills.tables_tried_within(book, 600) == set()


def test_a_backfill_that_nobody_reads_is_closed_and_one_that_is_read_or_only_waits_stays(
    ledger: str, book: Book, generation: Generation
) -> None:
    for table, name in (("s.a", "idle"), ("s.b", "held"), ("s.c", "read")):
        open_backfill(book, table, name)
    assert record(ledger, chunk_of(backfill_of("s.c", "read")), done=True)
    open_backfill(book, "s.d", "fresh")
    book.execute("UPDATE tidemark.backfills SET active_at = now() - interval '2 h' WHERE backfill <> 'fresh'")
    with leases.hold(ledger, "shop", leases.of_range("held", 1), "read/1"):
        closed = backfills.close_idle(book, 3600)
    assert [b.backfill for b in closed] == ["idle"]
    assert (closed[0].state_reason or "").startswith("nobody read on since ")


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_chunk_moves_the_cursor_of_its_range_and_the_last_one_ends_it(
    ledger: str, book: Book, generation: Generation
) -> None:
    backfill = open_backfill(book, "s.a")
    first = chunk_of(backfill, "1-1", upper=("5",))
    assert record(ledger, first, done=False)
    (left,) = chunks.free_ranges(book, "backfill1")
    assert (left.cursor, left.next_chunk, left.chunk, left.done) == (("5",), 2, "1-2", False)
    assert record(ledger, chunk_of(backfill, "1-2", lower=("5",)), cursor_before=("5",), done=True)
    assert chunks.free_ranges(book, "backfill1") == []
    kept, last = chunks.unclaimed(book)
    assert kept == first
    assert (last.lower, last.upper) == (("5",), None)


def test_of_two_readers_at_one_cursor_one_counts(ledger: str, book: Book, generation: Generation) -> None:
    backfill = open_backfill(book, "s.a")
    assert record(ledger, chunk_of(backfill, "1-1", upper=("5",)), done=False)
    other = chunk_of(backfill, "1-1", upper=("7",), attempt="00000000-0000-0000-0000-000000000001")
    assert not record(ledger, other, done=False)
    assert not record(ledger, chunk_of(backfill, "1-2", upper=("7",)), cursor_before=("4",), done=False)
    assert not record(ledger, chunk_of(backfill, "1-7"), cursor_before=("5",), done=True), "not the next number"
    assert record(ledger, chunk_of(backfill, "1-2"), cursor_before=("5",), done=True)
    assert not record(ledger, chunk_of(backfill, "1-3"), cursor_before=("5",), done=True)
    assert [c.chunk for c in chunks.unclaimed(book)] == ["1-1", "1-2"]


def test_a_reader_without_the_lease_of_the_range_writes_nothing(
    ledger: str, book: Book, generation: Generation
) -> None:
    backfill = open_backfill(book, "s.a")
    name = leases.of_range("b1", 1)
    with (
        leases.hold(ledger, "shop", name, "read/1") as lost,
        leases.hold(ledger, "shop", name, "read/1"),
        pytest.raises(LeaseLost),
    ):
        chunks.record(book, lost, chunk_of(backfill), cursor_before=None, done=True)
    assert chunks.of_backfill(book, "b1") == []


def test_nothing_is_recorded_for_a_backfill_that_is_closed(ledger: str, book: Book, generation: Generation) -> None:
    backfill = open_backfill(book, "s.a")
    backfills.close(book, "b1", "enough")
    assert not record(ledger, chunk_of(backfill), done=True)
    assert not chunks.ranges_of(book, "b1")[0].done


def test_a_chunk_of_an_older_generation_is_not_recorded_and_not_claimed(
    ledger: str, book: Book, lease: Lease, generation: Generation
) -> None:
    backfill = open_backfill(book, "s.a", "b1", *HALVES)
    assert record(ledger, chunk_of(backfill, "1-1"), done=True)
    open_at(book, lease, 2, Lsn(500))
    assert not record(ledger, chunk_of(backfill, "2-1"), done=True)
    assert chunks.unclaimed(book) == []


def test_a_range_that_another_reader_works_on_is_not_free(ledger: str, book: Book, generation: Generation) -> None:
    open_backfill(book, "s.a", "b1", *HALVES)
    with leases.hold(ledger, "shop", leases.of_range("b1", 1), "read/1"):
        assert [r.range for r in chunks.free_ranges(book, "backfill1")] == [2]
        # Its own next try takes the lease over.
        assert [r.range for r in chunks.free_ranges(book, "backfill1", "read/1")] == [1, 2]


def test_a_rejected_chunk_is_a_range_to_read_again(ledger: str, book: Book, generation: Generation) -> None:
    backfill = open_backfill(book, "s.a")
    first = chunk_of(backfill, "1-1", upper=("5",))
    assert record(ledger, first, done=False)
    chunks.reject(book, first.id, "the table was rewritten")
    chunks.reject(book, first.id, "twice")
    _, again = chunks.ranges_of(book, "b1")
    assert (again.range, again.lower, again.upper, again.cursor, again.done) == (2, None, ("5",), None, False)
    assert chunks.unclaimed(book) == []
    assert not chunks.all_read(book, "b1")
    assert [c.rejected for c in chunks.of_backfill(book, "b1")] == ["the table was rewritten"]


def test_the_keys_of_a_rejected_chunk_are_read_again(ledger: str, book: Book, generation: Generation) -> None:
    keys = (("1", "a"), ("2", "b"))
    backfill = open_backfill(book, "s.a", "b1", Range(keys=keys), mode="keys", sweeps=False)
    chunk = chunk_of(backfill)
    assert chunks.ranges_of(book, "b1")[0].keys == keys
    assert record(ledger, chunk, done=True)
    chunks.reject(book, chunk.id, "the table was rewritten")
    assert chunks.ranges_of(book, "b1")[1].keys == keys


def test_progress_counts_what_was_read_against_the_estimate(ledger: str, book: Book, generation: Generation) -> None:
    backfill = open_backfill(book, "s.a", "b1", *HALVES)
    (nothing,) = backfill_progress.progress(book, "backfill1")
    assert (nothing.rows, nothing.chunks, nothing.rate_rows_s, nothing.left_s) == (0, 0, None, None)
    rejected = chunk_of(backfill, "1-1", upper=("10",))
    assert record(ledger, rejected, done=True)
    assert record(ledger, chunk_of(backfill, "2-1", lower=("10",), upper=("15",)), done=False)
    chunks.reject(book, rejected.id, "the table was rewritten")
    (now,) = backfill_progress.progress(book)
    assert (now.rows, now.estimated_rows, now.chunks, now.rejected, now.ranges, now.ranges_done) == (5, 20, 1, 1, 3, 1)
    assert now.rate_rows_s is not None
    assert now.left_s is not None
    assert str(now).startswith("25 %")
    assert "5 of about 20 rows read in 1 chunk, 1 of 3 ranges done" in str(now)
    assert backfill_progress.progress(book, "another") == []
    done = replace(now, ranges_done=now.ranges)
    assert str(done).startswith("100 %: s.a: 5 rows read in 1 chunk, 3 of 3 ranges done"), "an estimate says no more"


def test_the_rate_and_the_time_left_are_those_of_the_last_minutes(
    ledger: str, book: Book, generation: Generation
) -> None:
    backfill = open_backfill(book, "s.a", "b1", *HALVES)
    assert record(ledger, chunk_of(backfill, "1-1", upper=("10",)), done=True)
    assert record(ledger, chunk_of(backfill, "2-1", lower=("10",), upper=("15",)), done=False)

    def read(chunk: str, ago_s: float, seconds: float) -> None:
        book.execute(
            "UPDATE tidemark.chunks SET rows = 5, seconds = %s, read_at = clock_timestamp() - make_interval(secs => %s)"
            " WHERE chunk = %s",
            (seconds, ago_s, chunk),
        )

    read("1-1", ago_s=100, seconds=10)
    read("2-1", ago_s=97, seconds=3)
    (now,) = backfill_progress.progress(book)
    assert now.rate_rows_s == pytest.approx(10 / 110, rel=0.1)
    read("1-1", ago_s=600, seconds=10)
    (later,) = backfill_progress.progress(book)
    assert later.rate_rows_s == pytest.approx(5 / 100, rel=0.1)
    assert later.left_s == pytest.approx(10 / (5 / 100), rel=0.1)


def test_filled_are_the_ranges_with_chunks_that_were_claimed(ledger: str, book: Book, generation: Generation) -> None:
    backfill = open_backfill(book, "s.a", "b1", *HALVES)
    before, cursor = None, None
    for number, upper in enumerate(("2", "4", "6", "8"), start=1):
        cursor = (upper,)
        assert record(
            ledger, chunk_of(backfill, f"1-{number}", lower=before, upper=cursor), cursor_before=before, done=False
        )
        before = cursor
    book.execute("UPDATE tidemark.chunks SET claimed_lsn = '0/C8' WHERE chunk IN ('1-1', '1-2', '1-4')")
    assert backfill_progress.filled(book, "b1") == [1]


# --- versions ---------------------------------------------------------------------------------------------------------


def test_a_reader_gets_the_latest_version_or_the_next_number(book: Book, lease: Lease, generation: Generation) -> None:
    manifest = manifest_of(100, 200, "s.a")
    batches.register(book, lease, manifest, path_of(manifest))
    same = structs.replace(schema_of("s.a"), version=0, relation_oid=99)
    assert schema_versions.adopt(book, same) == structs.replace(same, version=1)
    wider = schema_of("s.a", 0, ("id", "added"))
    assert schema_versions.adopt(book, wider).version == 2
    assert schema_versions.adopt(book, wider).version == 2
    assert [v.version for v in tables.versions(book, "s.a")] == [1, 2]


def test_two_readers_that_see_one_shape_at_once_get_one_number(ledger: str, book: Book, generation: Generation) -> None:
    tables.add(book, "s.new")
    numbers: list[int] = []

    def adopt() -> None:
        with open_ledger(ledger, "shop") as mine:
            numbers.append(schema_versions.adopt(mine, schema_of("s.new", 0)).version)

    other = threading.Thread(target=adopt)
    with book.transaction(), open_ledger(ledger, "shop") as witness:
        assert schema_versions.adopt(book, schema_of("s.new", 0)).version == 1
        other.start()
        wait_for("it waits for a lock", lambda: witness.execute(WAITING).fetchone())
    other.join()
    assert numbers == [1]
