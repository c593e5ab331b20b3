from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from sandbox.services.postgres import wait_for
from tests.ledger.conftest import open_at
from tests.support.backfills import HALVES, backfill_of, chunk_of, claim_of, open_backfill, record
from tests.support.manifests import manifest_of, path_of, schema_of
from tidemark.errors import ClaimRefused, DrainOvertaken, LeaseLost, SchemaVersionClash, SchemaVersionTaken
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.manifest import BatchManifest, Sweep, TableMark
from tidemark.ledger import leases
from tidemark.ledger.captured import schema_versions, tables
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.leases import SLOT, Lease
from tidemark.ledger.reading import backfills, chunks
from tidemark.ledger.reading.chunks import ReadChunk
from tidemark.ledger.staged import applied_positions, batches, generations, positions
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn
from tidemark.schema.fingerprint import Fingerprint

LOOKED = Fingerprint(1, 1, 1, "default", ("id",), (), (), (), None, ())

Book = Ledger


def register(book: Book, lease: Lease, manifest: BatchManifest) -> bool:
    return batches.register(book, lease, manifest, path_of(manifest))


def test_batches_form_a_chain_that_starts_where_the_generation_does(
    book: Book, lease: Lease, generation: Generation
) -> None:
    assert register(book, lease, manifest_of(100, 200, "s.a"))
    assert register(book, lease, manifest_of(200, 300, "s.b", run_id="run2"))
    assert generations.required(book).staged_lsn == Lsn(300)
    assert [(b.start_lsn, b.end_lsn) for b in batches.after(book, 1, Lsn(200))] == [(Lsn(200), Lsn(300))]
    assert [b.manifest for b in batches.of_run(book, "run1")] == [path_of(manifest_of(100, 200))]


@pytest.mark.parametrize(("start", "end"), [(150, 300), (50, 200), (300, 400)])
def test_a_hole_or_an_overlap_is_refused(
    book: Book, lease: Lease, generation: Generation, start: int, end: int
) -> None:
    register(book, lease, manifest_of(100, 200, "s.a"))
    with pytest.raises(DrainOvertaken, match="0/C8"):
        register(book, lease, manifest_of(start, end, "s.a", attempt="a2"))
    assert len(batches.after(book, 1, Lsn(0))) == 1


def test_the_same_manifest_twice_is_one_batch(book: Book, lease: Lease, generation: Generation) -> None:
    manifest = manifest_of(100, 200, "s.a", heartbeat=True)
    assert register(book, lease, manifest)
    assert not register(book, lease, manifest)
    register(book, lease, manifest_of(200, 300))
    assert not register(book, lease, manifest)
    assert generations.required(book).staged_lsn == Lsn(300)


def test_another_attempts_batch_of_the_same_range_is_refused(book: Book, lease: Lease, generation: Generation) -> None:
    register(book, lease, manifest_of(100, 200, "s.a"))
    with pytest.raises(DrainOvertaken):
        register(book, lease, manifest_of(100, 200, "s.a", attempt="a2"))


def test_of_two_drains_at_once_exactly_one_wins(ledger: str, book: Book, lease: Lease, generation: Generation) -> None:
    """Even under one attempt's lease, which no two drains have: the compare-and-set alone decides."""
    outcomes: list[str] = []
    together = threading.Barrier(4)

    def drain(attempt: str) -> None:
        with open_ledger(ledger, "shop") as mine:
            together.wait()
            try:
                register(mine, lease, manifest_of(100, 200, "s.a", attempt=attempt))
                outcomes.append("won")
            except DrainOvertaken:
                outcomes.append("lost")

    drains = [threading.Thread(target=drain, args=(f"a{n}",)) for n in range(4)]
    for thread in drains:
        thread.start()
    for thread in drains:
        thread.join()
    assert sorted(outcomes) == ["lost", "lost", "lost", "won"]
    assert len(batches.after(book, 1, Lsn(0))) == 1


def test_a_drain_that_lost_its_lease_registers_nothing(
    ledger: str, book: Book, generation: Generation, lease: Lease
) -> None:
    with leases.hold(ledger, "shop", SLOT, "drain/1"), pytest.raises(LeaseLost):
        register(book, lease, manifest_of(100, 200, "s.a"))
    assert generations.required(book).staged_lsn == Lsn(100)
    assert tables.all_of(book) == []


def test_a_batch_of_an_older_generation_is_refused(book: Book, lease: Lease, generation: Generation) -> None:
    open_at(book, lease, 2, Lsn(100))
    with pytest.raises(DrainOvertaken):
        register(book, lease, manifest_of(100, 200, "s.a", generation=1))


def test_registering_is_all_or_nothing(book: Book, lease: Lease, generation: Generation) -> None:
    register(book, lease, manifest_of(100, 200, "s.a"))
    clash = manifest_of(200, 300, "s.a", "s.b", schemas=(schema_of("s.b"), schema_of("s.a", columns=("id", "other"))))
    with pytest.raises(SchemaVersionClash, match=r"s\.a"):
        register(book, lease, clash)
    assert generations.required(book).staged_lsn == Lsn(200)
    assert tables.one(book, "s.b") is None


def test_a_batch_without_changes_moves_staged_and_touches_no_table(
    book: Book, lease: Lease, generation: Generation
) -> None:
    assert register(book, lease, manifest_of(100, 200, heartbeat=True))
    opened = generations.required(book)
    assert (opened.staged_lsn, opened.heartbeat_lsn) == (Lsn(200), Lsn(200))
    assert opened.heartbeat_at is not None
    assert opened.heartbeat_at.isoformat() == "2026-01-02T03:04:05+00:00"
    assert batches.unapplied(book) == []


def test_a_heartbeat_is_remembered_over_batches_without_one(book: Book, lease: Lease, generation: Generation) -> None:
    register(book, lease, manifest_of(100, 200, heartbeat=True))
    register(book, lease, manifest_of(200, 300))
    assert generations.required(book).heartbeat_lsn == Lsn(200)


def test_schema_versions_and_fingerprints_are_kept_with_the_batch(
    book: Book, lease: Lease, generation: Generation
) -> None:
    register(book, lease, manifest_of(100, 200, "s.a", fingerprints={"s.a": LOOKED}))
    second, rewritten = schema_of("s.a", 2, ("id", "added")), structs.replace(LOOKED, relfilenode=2)
    register(
        book,
        lease,
        manifest_of(200, 300, "s.a", schemas=(schema_of("s.a"), second), fingerprints={"s.a": rewritten}),
    )
    assert tables.versions(book, "s.a") == [schema_of("s.a"), second]
    row = tables.one(book, "s.a")
    assert row is not None
    assert Fingerprint.from_json(row.fingerprint) == rewritten


def test_a_recreated_table_of_the_same_shape_goes_on_under_its_version(
    book: Book, lease: Lease, generation: Generation
) -> None:
    register(book, lease, manifest_of(100, 200, "s.a"))
    register(book, lease, manifest_of(200, 300, "s.a", schemas=(structs.replace(schema_of("s.a"), relation_oid=99),)))
    assert len(tables.versions(book, "s.a")) == 1


def test_the_marks_of_a_manifest_are_given_in_the_same_transaction(
    book: Book, lease: Lease, generation: Generation
) -> None:
    marks = (
        TableMark("s.a", "parked", "SchemaNotFollowed", "BACKFILL", "column c was dropped"),
        TableMark("s.b", "needs_backfill", "rewritten", "BACKFILL", "column c was rewritten"),
    )
    register(book, lease, manifest_of(100, 200, "s.a", marks=marks))
    parked, marked = tables.all_of(book)
    assert (parked.life.merge, parked.error) == (
        "parked",
        ErrorRecord("SchemaNotFollowed", "BACKFILL", "column c was dropped"),
    )
    assert (marked.life.merge, marked.life.needs_backfill, marked.backfill_reason) == (
        "merging",
        True,
        "column c was rewritten",
    )


def test_unapplied_lists_older_generations_first_and_ends_where_the_position_is(
    book: Book, lease: Lease, generation: Generation
) -> None:
    for manifest in (manifest_of(100, 200, "s.a"), manifest_of(200, 300, "s.a", "s.b"), manifest_of(300, 400)):
        register(book, lease, manifest)
    open_at(book, lease, 2, Lsn(90))
    register(book, lease, manifest_of(90, 95, "s.a", generation=2))
    positions.rise(book, 1, {"s.a": (Lsn(300), Lsn(200))})
    ranges = [(t.generation, t.table, t.start_lsn, t.end_lsn) for t in batches.unapplied(book)]
    assert ranges == [
        (1, "s.a", Lsn(200), Lsn(300)),
        (1, "s.b", Lsn(200), Lsn(300)),
        (2, "s.a", Lsn(90), Lsn(95)),
    ]
    assert batches.unapplied(book)[2].files == manifest_of(90, 95, "s.a", generation=2).tables[0].files


def test_the_batch_before_a_plan_is_the_last_that_touches_the_table(
    book: Book, lease: Lease, generation: Generation
) -> None:
    for manifest in (manifest_of(100, 200, "s.a"), manifest_of(200, 300, "s.b"), manifest_of(300, 400, "s.a")):
        register(book, lease, manifest)
    assert batches.previous_ends(book, 1, {"s.a": Lsn(300)})["s.a"] == Lsn(200)
    assert batches.previous_ends(book, 1, {"s.b": Lsn(200)})["s.b"] is None


# --- claims -----------------------------------------------------------------------------------------------------------


def read_whole(ledger: str, book: Book, table: str = "s.a", backfill: str = "b1", **fields: Any) -> ReadChunk:
    """A backfill of one chunk, read and not claimed."""
    chunk = chunk_of(open_backfill(book, table, backfill, **fields))
    assert record(ledger, chunk, done=True)
    return chunk


def claiming(start: int, end: int, *chunks: ReadChunk, sweep: bool = False, **fields: Any) -> BatchManifest:
    """A batch that has the high watermarks of these chunks and no changes; `sweep` those chunks' backfills with it."""
    claims = {c.table: tuple(claim_of(d, end - 1) for d in chunks if d.table == c.table) for c in chunks}
    sweeps = {c.table: (Sweep(c.backfill, "700:700:", 1),) for c in chunks} if sweep else {}
    return manifest_of(start, end, claims=claims, sweeps=sweeps, **fields)


def test_a_batch_that_only_claims_chunks_touches_their_table(
    ledger: str, book: Book, lease: Lease, generation: Generation
) -> None:
    register(book, lease, manifest_of(100, 200, "s.b"))
    chunk = read_whole(ledger, book)
    register(book, lease, claiming(200, 300, chunk, sweep=True))
    register(book, lease, manifest_of(300, 400, "s.a"))
    first, second = (t for t in batches.unapplied(book) if t.table == "s.a")
    assert (first.end_lsn, first.files, first.max_xid) == (Lsn(300), (), None)
    assert (first.claims, first.sweeps) == ((claim_of(chunk, 299),), (Sweep("b1", "700:700:", 1),))
    after = batches.previous_ends(book, 1, {"s.a": second.start_lsn})
    assert (second.claims, after) == ((), {"s.a": Lsn(300)})
    assert applied_positions.applied(book)["s.a"] == Lsn(200)
    positions.rise(book, 1, {"s.a": (Lsn(300), Lsn(300))})
    assert applied_positions.applied(book)["s.a"] == Lsn(300)
    (claimed,) = chunks.of_backfill(book, "b1")
    assert (claimed.claimed_lsn, claimed.watermark_lsn) == (Lsn(300), Lsn(299))
    assert chunks.unclaimed(book) == []


def refused(book: Book, lease: Lease, manifest: BatchManifest) -> None:
    staged = generations.required(book).staged_lsn
    with pytest.raises(ClaimRefused, match="b1"):
        register(book, lease, manifest)
    assert generations.required(book).staged_lsn == staged


def test_a_claim_that_does_not_hold_registers_nothing(
    ledger: str, book: Book, lease: Lease, generation: Generation
) -> None:
    chunk = read_whole(ledger, book)
    refused(book, lease, claiming(100, 200, replace(chunk, attempt="00000000-0000-0000-0000-000000000001")))
    register(book, lease, claiming(100, 200, chunk))
    refused(book, lease, claiming(200, 300, chunk))
    assert tables.one(book, "s.b") is None


def test_a_chunk_of_a_closed_backfill_is_not_claimed(
    ledger: str, book: Book, lease: Lease, generation: Generation
) -> None:
    chunk = read_whole(ledger, book)
    backfills.close(book, "b1", "another one takes its place")
    refused(book, lease, claiming(100, 200, chunk))


def test_a_rejected_chunk_is_not_claimed_and_opens_its_part_again_with_the_batch(
    ledger: str, book: Book, lease: Lease, generation: Generation
) -> None:
    chunk = read_whole(ledger, book)
    rejected = {chunk.id: "the table was rewritten"}
    with pytest.raises(DrainOvertaken):
        batches.register(book, lease, manifest_of(150, 200), "m", rejected=rejected)
    assert len(chunks.ranges_of(book, "b1")) == 1
    batches.register(book, lease, manifest_of(100, 200), "m", rejected=rejected)
    assert [r.done for r in chunks.ranges_of(book, "b1")] == [True, False]
    refused(book, lease, claiming(200, 300, chunk))


def test_a_sweep_is_refused_while_something_of_the_backfill_is_unread_or_unclaimed(
    ledger: str, book: Book, lease: Lease, generation: Generation
) -> None:
    backfill = open_backfill(book, "s.a", "b1", *HALVES)
    first, second = chunk_of(backfill, "1-1", upper=("10",)), chunk_of(backfill, "2-1", lower=("10",))
    assert record(ledger, first, done=True)
    refused(book, lease, claiming(100, 200, first, sweep=True))
    assert record(ledger, second, done=True)
    refused(book, lease, claiming(100, 200, first, sweep=True))
    register(book, lease, claiming(100, 200, first))
    register(book, lease, claiming(200, 300, second, sweep=True))


def test_a_sweep_is_refused_where_the_batch_has_one_of_its_chunks_read_again(
    ledger: str, book: Book, lease: Lease, generation: Generation
) -> None:
    backfill = open_backfill(book, "s.a", "b1", *HALVES)
    first, second = chunk_of(backfill, "1-1", upper=("10",)), chunk_of(backfill, "2-1", lower=("10",))
    assert record(ledger, first, done=True)
    assert record(ledger, second, done=True)
    rejected = {second.id: "the table was rewritten"}
    with pytest.raises(ClaimRefused, match="not all of it is read"):
        batches.register(book, lease, claiming(100, 200, first, sweep=True), "m", rejected=rejected)


def test_a_manifest_registered_again_claims_what_it_says_known_or_not(
    ledger: str, book: Book, lease: Lease, generation: Generation
) -> None:
    in_ledger = read_whole(ledger, book)
    unknown = chunk_of(backfill_of("s.b", "b2"))
    backfills.close(book, "b1", "the ledger is an older copy")
    manifest = claiming(100, 200, in_ledger, unknown, sweep=True)
    assert batches.register(book, lease, manifest, "m", again=True)
    assert [(t.table, len(t.claims), len(t.sweeps)) for t in batches.unapplied(book)] == [
        ("s.a", 1, 1),
        ("s.b", 1, 1),
    ]
    assert chunks.of_backfill(book, "b1")[0].claimed_lsn == Lsn(200)


def test_a_chunk_recorded_while_the_batch_is_registered_waits_and_then_finds_the_backfill_as_it_is(
    ledger: str, book: Book, lease: Lease, generation: Generation
) -> None:
    """The lock of the backfill's row: either the chunk is there when the sweep is verified, or it comes after."""
    backfill = open_backfill(book, "s.a", "b1", *HALVES)
    first, second = chunk_of(backfill, "1-1", upper=("10",)), chunk_of(backfill, "2-1", lower=("10",))
    assert record(ledger, first, done=True)
    recorded: list[bool] = []
    reader = threading.Thread(target=lambda: recorded.append(record(ledger, second, done=True)))
    with book.transaction(), open_ledger(ledger, "shop") as witness:
        register(book, lease, claiming(100, 200, first))
        reader.start()
        wait_for(
            "the reader waits for a lock",
            lambda: witness.execute(
                "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
            ).fetchone(),
        )
        assert recorded == []
    reader.join()
    assert recorded == [True]
    assert [c.chunk for c in chunks.unclaimed(book)] == ["2-1"]


# --- versions that a reader knew first --------------------------------------------------------------------------------


def test_a_version_that_a_reader_knew_first_is_streamed_once_a_batch_has_changes_of_it(
    ledger: str, book: Book, lease: Lease, generation: Generation
) -> None:
    register(book, lease, manifest_of(100, 200, "s.a"))
    wider = schema_versions.adopt(book, schema_of("s.a", 0, ("id", "added")))
    assert [v.version for v in schema_versions.streamed(book, "s.a")] == [1]
    assert schema_versions.ahead(book, "s.a") == [wider]
    chunk = read_whole(ledger, book)
    register(book, lease, claiming(200, 300, chunk, schemas=(wider,)))
    assert schema_versions.ahead(book, "s.a") == [wider]
    manifest = manifest_of(300, 400, "s.a", schemas=(wider,))
    (table,) = manifest.tables
    files = (structs.replace(table.files[0], schema_version=2),)
    register(book, lease, structs.replace(manifest, tables=(structs.replace(table, files=files),)))
    assert [v.version for v in schema_versions.streamed(book, "s.a")] == [1, 2]
    assert schema_versions.ahead(book, "s.a") == []


def test_a_number_that_a_reader_gave_to_another_shape_makes_the_drain_try_again(
    book: Book, lease: Lease, generation: Generation
) -> None:
    schema_versions.adopt(book, schema_of("s.a", 0, ("id", "added")))
    with pytest.raises(SchemaVersionTaken, match=r"s\.a"):
        register(book, lease, manifest_of(100, 200, "s.a"))
    assert generations.required(book).staged_lsn == Lsn(100)


def test_the_shape_that_the_target_has_is_that_of_the_last_changes_applied(
    book: Book, lease: Lease, generation: Generation
) -> None:
    register(book, lease, manifest_of(100, 200, "s.a"))
    assert schema_versions.merged(book, "s.a") is None
    wider = schema_of("s.a", 2, ("id", "added"))
    manifest = manifest_of(200, 300, "s.a", schemas=(wider,))
    (table,) = manifest.tables
    register(
        book,
        lease,
        structs.replace(
            manifest,
            tables=(structs.replace(table, files=(structs.replace(table.files[0], schema_version=2),)),),
        ),
    )
    for end, version in ((200, 1), (300, 2)):
        positions.rise(book, 1, {"s.a": (Lsn(end), Lsn(end))})
        shape = schema_versions.merged(book, "s.a")
        assert shape is not None
        assert shape.version == version
