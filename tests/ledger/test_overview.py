from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from tests.ledger.conftest import open_at
from tests.support.manifests import manifest_of, path_of
from tidemark.formats.compaction_plan import TableCompaction
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.manifest import BatchManifest
from tidemark.formats.merge_result import DeltaSize, TableResult
from tidemark.ledger.captured import merge_states, tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.observations import overview, table_sizes
from tidemark.ledger.staged import batches, positions
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn

Book = Ledger


def test_before_the_first_generation_there_is_no_status(book: Book) -> None:
    assert overview.read(book) is None


def test_the_status_says_per_table_what_waits_and_why(book: Book, lease: Lease, generation: Generation) -> None:
    for manifest in (manifest_of(100, 200, "s.a", "s.b"), manifest_of(200, 300, "s.b"), manifest_of(300, 400)):
        batches.register(book, lease, manifest, path_of(manifest))
    positions.rise(book, 1, {"s.a": (Lsn(200), Lsn(200))})
    positions.rise(book, 1, {"s.b": (Lsn(200), None)})
    error = ErrorRecord("TableBroken", "FIX_TARGET", "it is broken")
    merge_states.park(book, "s.b", error)

    status = overview.read(book)
    assert status is not None
    assert (status.generation.staged_lsn, status.confirmable_lsn, status.batches) == (Lsn(400), Lsn(400), 3)
    level, parked = status.tables
    assert (level.table, level.lag_bytes, level.waiting_batches) == ("s.a", 0, 0)
    assert (parked.row.life.merge, parked.row.error) == ("parked", error)
    assert (parked.applied_lsn, parked.lag_bytes) == (Lsn(100), 300)
    assert (parked.waiting_batches, parked.waiting_changes) == (2, 20)
    assert parked.waiting_since is not None
    assert status.leases == {"slot": "drain/1"}


def test_the_last_change_is_that_of_a_captured_change_and_of_nothing_else(
    book: Book, lease: Lease, generation: Generation
) -> None:
    at = [f"2026-01-02T0{hour}:00:00+00:00" for hour in range(3)]
    for start, moment, names in ((100, at[1], ["s.a"]), (200, at[0], ["s.a"]), (300, at[2], ["s.b"])):
        manifest = committed_at(manifest_of(start, start + 100, *names), moment, moment)
        batches.register(book, lease, manifest, path_of(manifest))
    tables.add(book, "s.quiet")
    positions.rise(book, 1, {name: (Lsn(400), Lsn(400)) for name in ("s.a", "s.b", "s.quiet")})
    status = overview.read(book)
    assert status is not None
    changed = {table.table: table.row.changed_at for table in status.tables}
    assert changed == {"s.a": datetime.fromisoformat(at[1]), "s.b": datetime.fromisoformat(at[2]), "s.quiet": None}


def committed_at(manifest: BatchManifest, first: str, last: str) -> BatchManifest:
    """With these times of the changes; the heartbeat at the batch's end committed later."""
    changed = tuple(replace(t, first_committed_at=first, last_committed_at=last) for t in manifest.tables)
    return replace(manifest, tables=changed, last_committed_at="2026-01-02T09:00:00+00:00")


def test_the_oldest_change_that_waits_is_known_by_its_commit(book: Book, lease: Lease, generation: Generation) -> None:
    at = [f"2026-01-02T0{hour}:00:00+00:00" for hour in range(4)]
    for start, first, last in ((100, at[2], at[3]), (200, at[1], at[2])):
        manifest = committed_at(manifest_of(start, start + 100, "s.a"), first, last)
        batches.register(book, lease, manifest, path_of(manifest))
    read_alone = manifest_of(300, 400, claims={"s.b": ()})
    batches.register(book, lease, read_alone, path_of(read_alone))
    status = overview.read(book)
    assert status is not None
    oldest = {t.table: t.backlog.oldest_change_at for t in status.tables if t.backlog is not None}
    assert oldest["s.a"] == datetime.fromisoformat(at[1])
    assert oldest.get("s.b") is None


def test_what_an_older_generation_left_waits_too(book: Book, lease: Lease, generation: Generation) -> None:
    manifest = manifest_of(100, 200, "s.a")
    batches.register(book, lease, manifest, path_of(manifest))
    open_at(book, lease, 2, Lsn(1000))
    status = overview.read(book)
    assert status is not None
    (table,) = status.tables
    assert (table.waiting_batches, table.applied_lsn) == (1, Lsn(1000))


def test_sizes_are_known_from_the_first_merge_on(book: Book, generation: Generation) -> None:
    def merged(rows: int | None, **counts: int) -> TableResult:
        sizes = (DeltaSize("history", 3, 900, rows), DeltaSize("current", 2, 800, rows))
        return TableResult("s.a", Lsn(200), Lsn(200), rows=counts, sizes=sizes)

    def kept() -> list[tuple[str, int, int, int | None, bool]]:
        (tables_of,) = table_sizes.all_of(book).values()
        return [(one.kind, one.files, one.bytes, one.rows, one.seen_at is None) for one in tables_of]

    table_sizes.keep_merged(book, [merged(None, history=9, inserted=7)], first=["s.a"])
    assert kept() == [("current", 2, 800, 7, True), ("history", 3, 900, 9, True)]
    table_sizes.keep_merged(book, [merged(None, history=3, inserted=1, deleted=2)], first=[])
    assert [rows for *_, rows, _ in kept()] == [6, 12]
    table_sizes.keep_merged(book, [merged(5)], first=[])
    assert [rows for *_, rows, _ in kept()] == [5, 5]
    table_sizes.keep(book, [TableCompaction("s.a", "current", 2, 1, bytes=700, rows=4)])
    assert kept() == [("current", 1, 700, 4, False), ("history", 3, 900, 5, True)]
    assert table_sizes.keep_merged(book, [TableResult("s.a", Lsn(200), Lsn(200))], first=[]) is None


def test_how_many_rows_a_table_had_before_a_merge_is_not_guessed(book: Book, generation: Generation) -> None:
    sizes = (DeltaSize("current", 99, 800),)
    table_sizes.keep_merged(book, [TableResult("s.a", Lsn(9), Lsn(9), rows={"inserted": 7}, sizes=sizes)], first=[])
    ((current,),) = table_sizes.all_of(book).values()
    assert (current.files, current.rows) == (99, None)
