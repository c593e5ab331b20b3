"""Values that did not fit their Delta type are counted until something replaces them, whatever becomes of staging."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from tests.support.backfills import chunk_of, claim_of, open_backfill, record
from tests.support.manifests import manifest_of, path_of
from tidemark.formats.manifest import BatchManifest
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.observations import overview
from tidemark.ledger.reading import backfills
from tidemark.ledger.reading.backfills import Backfill
from tidemark.ledger.retention import restored_retirement, retirement
from tidemark.ledger.staged import batches, positions
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.schema.table import Column, TableSchema

A, B = "public.a", "public.b"


class Staging:
    """`stage` registers one batch of tables A and B, with counts of unfit values for A."""

    def __init__(self, ledger: str, book: Ledger, lease: Lease) -> None:
        self.ledger, self.book, self.lease = ledger, book, lease
        self.end = 100

    def stage(
        self,
        converted: Mapping[str, int],
        counts: Mapping[str, int] | None = None,
        *,
        moved: int = 0,
        **fields: Any,
    ) -> BatchManifest:
        start, self.end = self.end, self.end + 100
        manifest = manifest_of(start, self.end, A, B, **{"max_xid": 500, **fields})
        of_a, *others = manifest.tables
        changed = with_fields(
            of_a, converted=dict(converted), counts=dict(counts or of_a.counts), moved=moved, unchanged=moved
        )
        manifest = with_fields(manifest, tables=(changed, *others))
        batches.register(self.book, self.lease, manifest, path_of(manifest))
        return manifest

    def read(self, backfill: Backfill, converted: Mapping[str, int], **fields: Any) -> None:
        """One chunk is read to its end, and the next batch claims it."""
        chunk = chunk_of(backfill, converted=dict(converted))
        assert record(self.ledger, chunk, done=True)
        claim = with_fields(claim_of(chunk, self.end + 50), purpose=backfill.purpose, converted=dict(converted))
        self.stage({}, claims={A: (claim,)}, **fields)

    def fill(self, converted: Mapping[str, int], name: str = "b1", **fields: Any) -> None:
        """A backfill of these values from its opening to its end."""
        self.read(open_backfill(self.book, A, name, snapshot="700:700:", **fields), converted)
        self.apply()

    def apply(self) -> None:
        at = Lsn(self.end)
        positions.rise(self.book, 1, {A: (at, at), B: (at, at)})
        with self.book.transaction():
            backfills.complete(self.book, 1, A, at)

    def clean_up(self) -> retirement.RetiredPrefix:
        in_future = datetime.now(UTC) + timedelta(hours=1)
        marked = retirement.mark(self.book, self.lease, 1, cutoff=in_future, confirmed=Lsn(10_000), xmin=10_000)
        while page := retirement.to_remove(self.book, 1, 2):
            retirement.removed(self.book, 1, page)
        for name in retirement.ended_backfills(self.book, in_future):
            retirement.backfill_removed(self.book, name)
        return marked

    @property
    def unfit(self) -> dict[str, int]:
        status = overview.read(self.book)
        assert status is not None
        return {table.table: table.unfit for table in status.tables}[A]


@pytest.fixture
def staging(ledger: str, book: Ledger, lease: Lease, generation: Generation) -> Staging:
    return Staging(ledger, book, lease)


def test_the_counts_outlive_the_staging_that_they_came_with(staging: Staging) -> None:
    staging.stage({"at": 2, "price": 1})
    staging.stage({"at": 2})
    for _ in range(3):
        staging.stage({})
    staging.apply()
    staging.clean_up()
    kept = staging.book.execute("""SELECT count(*) FROM tidemark.batch_tables WHERE converted <> '{}'""").fetchone()
    assert kept == (0,)
    assert staging.unfit == {"at": 4, "price": 1}


def test_those_of_a_backfill_outlive_its_files(staging: Staging) -> None:
    staging.fill({"at": 3})
    staging.fill({"at": 3}, "b2")
    staging.fill({"at": 3}, "b3")
    staging.stage({})
    staging.apply()
    staging.clean_up()
    assert staging.unfit == {"at": 3}


def test_a_batch_that_is_registered_twice_is_counted_once(staging: Staging) -> None:
    manifest = staging.stage({"at": 2})
    assert not batches.register(staging.book, staging.lease, manifest, path_of(manifest))
    assert staging.unfit == {"at": 2}


def test_a_backfill_of_the_whole_table_replaces_the_counts(staging: Staging) -> None:
    staging.stage({"at": 2, "price": 1})
    staging.fill({"price": 5})
    assert staging.unfit == {"price": 5}
    staging.fill({}, "b2")
    assert staging.unfit == {}


def test_a_change_that_the_backfill_may_not_have_seen_is_still_counted(staging: Staging) -> None:
    staging.stage({"at": 7}, max_xid=699)
    backfill = open_backfill(staging.book, A, snapshot="700:700:")
    staging.stage({"at": 2}, max_xid=700)
    staging.read(backfill, {"at": 1}, max_xid=701)
    staging.apply()
    assert staging.unfit == {"at": 3}


def test_a_value_that_a_moved_key_took_along_is_still_counted(staging: Staging) -> None:
    staging.stage({"at": 7}, max_xid=699)
    backfill = open_backfill(staging.book, A, snapshot="700:700:")
    staging.stage({}, {"update": 1}, moved=1, max_xid=700)
    staging.read(backfill, {}, max_xid=701)
    staging.apply()
    assert staging.unfit == {"at": 7}


@pytest.mark.parametrize("restriction", [{"row_filter": "id < 5"}, {"mode": "keys"}, {"columns": (1,)}])
def test_a_backfill_of_a_part_adds_and_replaces_nothing(staging: Staging, restriction: dict[str, Any]) -> None:
    staging.stage({"at": 2})
    staging.fill({"price": 1}, **restriction)
    assert staging.unfit == {"at": 2, "price": 1}


def test_a_truncate_takes_the_earlier_ones_away(staging: Staging) -> None:
    staging.stage({"at": 2})
    staging.stage({"price": 1}, {"truncate": 1, "insert": 4})
    assert staging.unfit == {"price": 1}


@pytest.mark.parametrize("purpose", ["verify", "repair"])
def test_what_a_verify_reads_again_is_not_counted_twice(staging: Staging, purpose: str) -> None:
    staging.stage({"at": 2})
    staging.read(open_backfill(staging.book, A, "v1", snapshot="700:700:", purpose=purpose), {"at": 2, "price": 1})
    assert staging.unfit == {"at": 2, "price": 1}


def schema(version: int, *columns: tuple[int, str]) -> TableSchema:
    named = (Column(name, "integer", 23, -1, "int", attnum=number) for number, name in columns)
    numbers = tuple(number for number, _ in columns)
    return TableSchema(TableName.parse(A), version, 16384, "default", ("id",), tuple(named), published=numbers)


def test_the_count_follows_its_column_through_renames_and_goes_with_it(staging: Staging) -> None:
    first, renamed = schema(1, (1, "id"), (2, "at"), (3, "x")), schema(2, (1, "id"), (2, "seen"), (3, "x"))
    staging.stage({"at": 2, "x": 1}, schemas=(first,))
    staging.stage({}, schemas=(renamed,))
    assert staging.unfit == {"seen": 2, "x": 1}
    staging.stage({}, schemas=(schema(3, (1, "id"), (2, "seen"), (4, "x")),))
    assert staging.unfit == {"seen": 2}


def test_a_ledger_that_lost_them_takes_the_counts_from_the_clean_up(staging: Staging, ledger: str) -> None:
    staging.stage({"at": 2})
    staging.stage({})
    staging.apply()
    file = staging.clean_up().file
    assert file.unfit == {A: {"at": 2}}
    staging.book.execute("DELETE FROM tidemark.unfit_values")
    staging.book.execute("UPDATE tidemark.generations SET retired_lsn = NULL")
    staging.stage({"at": 1, "price": 1})
    assert restored_retirement.apply(staging.book, staging.lease, file, lambda paths: False)
    assert staging.unfit == {"at": 2, "price": 1}
