from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests.ledger.conftest import open_at
from tests.support.manifests import manifest_of, path_of, schema_of
from tidemark.errors import LeaseLost, SchemaVersionClash, StagedMoved
from tidemark.ledger import batches, generations, leases, positions, tables
from tidemark.ledger.connection import connect
from tidemark.ledger.generations import Generation
from tidemark.ledger.leases import SLOT, Lease
from tidemark.lsn import Lsn
from tidemark.staging.manifest import BatchManifest, TableMark

Book = psycopg.Connection[Any]


def register(book: Book, lease: Lease, manifest: BatchManifest) -> bool:
    return batches.register(book, lease, manifest, path_of(manifest))


def test_batches_form_a_chain_that_starts_where_the_generation_does(
    book: Book, lease: Lease, generation: Generation
) -> None:
    assert register(book, lease, manifest_of(100, 200, "s.a"))
    assert register(book, lease, manifest_of(200, 300, "s.b", run_id="run2"))
    assert batches.staged(book, "shop") == Lsn(300)
    assert [(b.start_lsn, b.end_lsn) for b in batches.after(book, "shop", 1, Lsn(200))] == [(Lsn(200), Lsn(300))]
    assert [b.manifest for b in batches.of_run(book, "shop", "run1")] == [path_of(manifest_of(100, 200))]


@pytest.mark.parametrize(("start", "end"), [(150, 300), (50, 200), (300, 400)])
def test_a_hole_or_an_overlap_is_refused(
    book: Book, lease: Lease, generation: Generation, start: int, end: int
) -> None:
    register(book, lease, manifest_of(100, 200, "s.a"))
    with pytest.raises(StagedMoved, match="0/C8"):
        register(book, lease, manifest_of(start, end, "s.a", attempt="a2"))
    assert len(batches.after(book, "shop", 1, Lsn(0))) == 1


def test_the_same_manifest_twice_is_one_batch(book: Book, lease: Lease, generation: Generation) -> None:
    manifest = manifest_of(100, 200, "s.a", heartbeat=True)
    assert register(book, lease, manifest)
    assert not register(book, lease, manifest)
    register(book, lease, manifest_of(200, 300))
    assert not register(book, lease, manifest)
    assert batches.staged(book, "shop") == Lsn(300)


def test_another_attempts_batch_of_the_same_range_is_refused(book: Book, lease: Lease, generation: Generation) -> None:
    register(book, lease, manifest_of(100, 200, "s.a"))
    with pytest.raises(StagedMoved):
        register(book, lease, manifest_of(100, 200, "s.a", attempt="a2"))


def test_of_two_drains_at_once_exactly_one_wins(ledger: str, book: Book, lease: Lease, generation: Generation) -> None:
    """Even under one attempt's lease, which no two drains have: the compare-and-set alone decides."""
    outcomes: list[str] = []
    together = threading.Barrier(4)

    def drain(attempt: str) -> None:
        with connect(ledger) as mine:
            together.wait()
            try:
                register(mine, lease, manifest_of(100, 200, "s.a", attempt=attempt))
                outcomes.append("won")
            except StagedMoved:
                outcomes.append("lost")

    drains = [threading.Thread(target=drain, args=(f"a{n}",)) for n in range(4)]
    for thread in drains:
        thread.start()
    for thread in drains:
        thread.join()
    assert sorted(outcomes) == ["lost", "lost", "lost", "won"]
    assert len(batches.after(book, "shop", 1, Lsn(0))) == 1


def test_a_drain_that_lost_its_lease_registers_nothing(
    ledger: str, book: Book, generation: Generation, lease: Lease
) -> None:
    with leases.hold(ledger, "shop", SLOT, "drain/1"), pytest.raises(LeaseLost):
        register(book, lease, manifest_of(100, 200, "s.a"))
    assert batches.staged(book, "shop") == Lsn(100)
    assert tables.all_of(book, "shop") == []


def test_a_batch_of_an_older_generation_is_refused(book: Book, lease: Lease, generation: Generation) -> None:
    open_at(book, lease, 2, Lsn(100))
    with pytest.raises(StagedMoved):
        register(book, lease, manifest_of(100, 200, "s.a", generation=1))


def test_registering_is_all_or_nothing(book: Book, lease: Lease, generation: Generation) -> None:
    register(book, lease, manifest_of(100, 200, "s.a"))
    clash = manifest_of(200, 300, "s.a", "s.b", schemas=(schema_of("s.b"), schema_of("s.a", columns=("id", "other"))))
    with pytest.raises(SchemaVersionClash, match=r"s\.a"):
        register(book, lease, clash)
    assert batches.staged(book, "shop") == Lsn(200)
    assert tables.one(book, "shop", "s.b") is None


def test_a_batch_without_changes_moves_staged_and_touches_no_table(
    book: Book, lease: Lease, generation: Generation
) -> None:
    assert register(book, lease, manifest_of(100, 200, heartbeat=True))
    opened = generations.required(book, "shop")
    assert (opened.staged_lsn, opened.heartbeat_lsn) == (Lsn(200), Lsn(200))
    assert opened.heartbeat_at is not None
    assert opened.heartbeat_at.isoformat() == "2026-01-02T03:04:05+00:00"
    assert batches.unapplied(book, "shop") == []


def test_a_heartbeat_is_remembered_over_batches_without_one(book: Book, lease: Lease, generation: Generation) -> None:
    register(book, lease, manifest_of(100, 200, heartbeat=True))
    register(book, lease, manifest_of(200, 300))
    assert generations.required(book, "shop").heartbeat_lsn == Lsn(200)


def test_schema_versions_and_fingerprints_are_kept_with_the_batch(
    book: Book, lease: Lease, generation: Generation
) -> None:
    register(book, lease, manifest_of(100, 200, "s.a", fingerprints={"s.a": {"relfilenode": 1}}))
    second = schema_of("s.a", 2, ("id", "added"))
    register(
        book,
        lease,
        manifest_of(200, 300, "s.a", schemas=(schema_of("s.a"), second), fingerprints={"s.a": {"relfilenode": 2}}),
    )
    assert tables.versions(book, "shop", "s.a") == [schema_of("s.a"), second]
    row = tables.one(book, "shop", "s.a")
    assert row is not None
    assert row.fingerprint == {"relfilenode": 2}


def test_a_recreated_table_of_the_same_shape_goes_on_under_its_version(
    book: Book, lease: Lease, generation: Generation
) -> None:
    register(book, lease, manifest_of(100, 200, "s.a"))
    register(book, lease, manifest_of(200, 300, "s.a", schemas=(replace(schema_of("s.a"), relation_oid=99),)))
    assert len(tables.versions(book, "shop", "s.a")) == 1


def test_the_marks_of_a_manifest_are_given_in_the_same_transaction(
    book: Book, lease: Lease, generation: Generation
) -> None:
    marks = (
        TableMark("s.a", "parked", "SchemaNotFollowed", "BACKFILL", "column c was dropped"),
        TableMark("s.b", "needs_backfill", "rewritten", "BACKFILL", "column c was rewritten"),
    )
    register(book, lease, manifest_of(100, 200, "s.a", marks=marks))
    parked, marked = tables.all_of(book, "shop")
    assert (parked.state, parked.error) == (
        "parked",
        {"kind": "SchemaNotFollowed", "move": "BACKFILL", "message": "column c was dropped"},
    )
    assert (marked.state, marked.needs_backfill, marked.backfill_reason) == ("merging", True, "column c was rewritten")


def test_unapplied_lists_older_generations_first_and_ends_where_the_position_is(
    book: Book, lease: Lease, generation: Generation
) -> None:
    for manifest in (manifest_of(100, 200, "s.a"), manifest_of(200, 300, "s.a", "s.b"), manifest_of(300, 400)):
        register(book, lease, manifest)
    open_at(book, lease, 2, Lsn(90))
    register(book, lease, manifest_of(90, 95, "s.a", generation=2))
    positions.rise(book, "shop", 1, "s.a", history_lsn=Lsn(300), current_lsn=Lsn(200))
    found = [(t.generation, t.table, t.start_lsn, t.end_lsn) for t in batches.unapplied(book, "shop")]
    assert found == [
        (1, "s.a", Lsn(200), Lsn(300)),
        (1, "s.b", Lsn(200), Lsn(300)),
        (2, "s.a", Lsn(90), Lsn(95)),
    ]
    assert batches.unapplied(book, "shop", 2)[0].files == manifest_of(90, 95, "s.a", generation=2).tables[0].files


def test_the_batch_before_a_plan_is_the_last_that_touches_the_table(
    book: Book, lease: Lease, generation: Generation
) -> None:
    for manifest in (manifest_of(100, 200, "s.a"), manifest_of(200, 300, "s.b"), manifest_of(300, 400, "s.a")):
        register(book, lease, manifest)
    assert batches.previous_end(book, "shop", 1, "s.a", Lsn(300)) == Lsn(200)
    assert batches.previous_end(book, "shop", 1, "s.b", Lsn(200)) is None
