"""What may go of staging: each clause of `ledger.retention.retirement` alone."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from sandbox.services.postgres import wait_for
from tests.support.backfills import WAITING, chunk_of, claim_of, open_backfill, record
from tests.support.manifests import manifest_of, path_of
from tidemark.errors import Move, SnapshotBeforeCleanUp
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.manifest import Sweep
from tidemark.formats.retired_file import RetiredFile
from tidemark.ledger.captured import merge_states, schema_versions, tables
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.reading import backfills, chunks
from tidemark.ledger.retention import restored_retirement, retirement
from tidemark.ledger.retention.retirement import RetiredPrefix
from tidemark.ledger.staged import batches, positions
from tidemark.ledger.staged.generations import Generation
from tidemark.ledger.staged.snapshot_evidence import NeededEvidence
from tidemark.lsn import Lsn

BROKEN = ErrorRecord("TargetDiffers", Move.FIX_TARGET, "somebody changed it")
A, B = "public.a", "public.b"


class Staging:
    """`stage` registers a batch of 100 bytes of WAL, which `retire` then finds old enough."""

    def __init__(self, book: Ledger, lease: Lease) -> None:
        self.book = book
        self.lease = lease
        self.end = 100

    def stage(self, *touched: str, applied: bool = True, **fields: Any) -> Lsn:
        start, self.end = self.end, self.end + 100
        manifest = manifest_of(start, self.end, *touched, **fields)
        batches.register(self.book, self.lease, manifest, path_of(manifest))
        for table in manifest.tables if applied else ():
            positions.rise(self.book, 1, {table.table: (manifest.end_lsn, manifest.end_lsn)})
        return manifest.end_lsn

    def retire(
        self, *, confirmed: int = 10_000, xmin: int = 10_000, age: timedelta = timedelta(hours=-1)
    ) -> RetiredPrefix:
        """`age` below zero: everything is old enough."""
        cutoff = datetime.now(UTC) - age
        return retirement.mark(self.book, self.lease, 1, cutoff=cutoff, confirmed=Lsn(confirmed), xmin=xmin)

    def remove(self) -> None:
        while page := retirement.to_remove(self.book, 1, 2):
            retirement.removed(self.book, 1, page)

    def rows(self) -> list[tuple[str, int]]:
        table_rows = self.book.execute('SELECT "table", end_lsn FROM tidemark.batch_tables ORDER BY end_lsn, "table"')
        return [(table, int(end)) for table, end in table_rows]

    def retired(self) -> set[tuple[str, int]]:
        table_rows = self.book.execute(
            'SELECT "table", end_lsn FROM tidemark.batch_tables WHERE retired_at IS NOT NULL'
        )
        return {(table, int(end)) for table, end in table_rows}


@pytest.fixture
def staging(book: Ledger, lease: Lease, generation: Generation) -> Staging:
    return Staging(book, lease)


def ends(marked: RetiredPrefix) -> tuple[int, str]:
    return int(marked.file.up_to), marked.held_by


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_a_clean_up_that_waited_for_a_backfill_to_open_keeps_its_evidence(
    ledger: str, staging: Staging, book: Ledger, lease: Lease, isolation: str
) -> None:
    """Whatever isolation the ledger's database has for its sessions: what it locked the row for, it must see."""
    database = conninfo_to_dict(ledger)["dbname"]
    book.connection.execute(
        sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}").format(
            sql.Identifier(str(database)), sql.Literal(isolation)
        )
    )
    staging.stage(A, max_xid=705)

    def retire() -> None:
        with open_ledger(ledger, "shop") as mine:
            Staging(mine, lease).retire()

    other = threading.Thread(target=retire)
    with book.transaction(), open_ledger(ledger, "shop") as witness:
        open_backfill(book, A)
        other.start()
        wait_for("it waits for a lock", lambda: witness.execute(WAITING).fetchone())
    other.join()
    assert staging.retired() == set()


def test_what_is_younger_than_the_cutoff_stays(staging: Staging) -> None:
    staging.stage(A)
    assert ends(staging.retire(age=timedelta(hours=1))) == (100, "")
    assert ends(staging.retire()) == (200, "")


def test_much_is_retired_piece_by_piece(staging: Staging, book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement of the ledger takes two minutes at most: what does not fit would be retired never."""
    monkeypatch.setattr(retirement, "MOST_ROWS", 3)
    for _ in range(6):
        staging.stage(A, B)
    marked = staging.retire()
    assert (ends(marked), marked.rows, len(staging.retired())) == ((700, ""), 12, 12)
    rows = book.execute("SELECT count(*) FROM tidemark.batch_tables GROUP BY xmin").fetchall()
    assert max(count for (count,) in rows) <= 4


def test_what_is_not_confirmed_stays(staging: Staging) -> None:
    staging.stage(A)
    staging.stage(A)
    assert ends(staging.retire(confirmed=299)) == (200, "the slot is not confirmed beyond it")


def test_what_a_snapshot_taken_now_may_not_see_stays(staging: Staging) -> None:
    staging.stage(A, max_xid=700)
    staging.stage(A, max_xid=710)
    assert ends(staging.retire(xmin=710)) == (200, "a transaction that began before is still open at the source")
    assert ends(staging.retire(xmin=711)) == (300, "")


def test_what_is_not_applied_to_a_table_keeps_all_that_follows(staging: Staging) -> None:
    staging.stage(A)
    staging.stage(B, applied=False)
    staging.stage(A)
    assert ends(staging.retire()) == (200, "a table that is neither parked nor paused has not taken what follows")


def test_a_parked_table_keeps_its_own_files_alone(staging: Staging) -> None:
    staging.stage(A, B)
    positions.rise(staging.book, 1, {A: (Lsn(200), Lsn(200))})
    staging.stage(A, B, applied=False)
    positions.rise(staging.book, 1, {A: (Lsn(300), Lsn(300))})
    staging.stage(A)
    merge_states.park(staging.book, B, BROKEN)
    marked = staging.retire()
    assert (ends(marked), marked.file.kept) == ((400, ""), (B,))
    assert (marked.kept[B].batches, marked.kept[B].bytes, marked.kept[B].held) == (1, 4, True)
    assert staging.retired() == {(A, 200), (B, 200), (A, 300), (A, 400)}
    whole = {int(batch.end_lsn): batch.is_whole for batch in retirement.to_remove(staging.book, 1, 10)}
    assert whole == {200: True, 300: False, 400: True}
    staging.remove()
    assert staging.rows() == [(B, 200), (B, 300), (A, 400)]
    positions.rise(staging.book, 1, {B: (Lsn(300), Lsn(300))})
    assert staging.retire().file.kept == ()
    staging.remove()
    assert staging.rows() == [(B, 300), (A, 400)]


def test_an_open_backfill_keeps_what_its_snapshot_may_not_have_seen_of_its_table(staging: Staging) -> None:
    tables.add(staging.book, A)
    open_backfill(staging.book, A, snapshot="700:700:")
    staging.stage(A, B, max_xid=699)
    staging.stage(A, B, max_xid=700)
    staging.stage(A, B)
    staging.retire()
    assert staging.retired() == {(A, 200), (B, 200), (B, 300), (A, 400), (B, 400)}


def test_one_under_an_exported_snapshot_keeps_all_changes_since(staging: Staging) -> None:
    tables.add(staging.book, A)
    open_backfill(staging.book, A, snapshot="700:700:", mode="exported_snapshot", snapshot_lsn=Lsn(200))
    staging.stage(A, max_xid=600)
    staging.stage(A, max_xid=601)
    staging.retire()
    assert staging.retired() == {(A, 200)}


def test_a_chunk_that_nobody_will_claim_keeps_nothing(staging: Staging, ledger: str) -> None:
    tables.add(staging.book, A)
    backfill = open_backfill(staging.book, A, mode="exported_snapshot", snapshot_lsn=Lsn(40))
    assert record(ledger, chunk_of(backfill, consistent_point=Lsn(50)), done=True)
    staging.stage(A, max_xid=600)
    staging.retire()
    assert staging.retired() == set()
    backfills.close(staging.book, "b1", "a test closed it")
    staging.retire()
    assert staging.retired() == {(A, 200)}


def test_the_batches_that_took_chunks_stay_until_the_backfill_is_swept(staging: Staging, ledger: str) -> None:
    tables.add(staging.book, A)
    backfill = open_backfill(staging.book, A, snapshot="700:700:", snapshot_lsn=Lsn(40))
    first = chunk_of(backfill)
    assert record(ledger, first, done=True)
    staging.stage(claims={A: (claim_of(first, 150),)})
    staging.retire()
    assert staging.retired() == set()
    backfills.close(staging.book, "b1", "a test closed it")
    # Its sweep is staged, and not done: then the rows that its chunks read would be removed.
    staging.stage(A, sweeps={A: (Sweep("b1", "700:700:", 1),)}, applied=False)
    merge_states.park(staging.book, A, BROKEN)
    staging.retire()
    assert staging.retired() == set()
    positions.rise(staging.book, 1, {A: (Lsn(staging.end), Lsn(staging.end))})
    staging.retire()
    assert {end for _, end in staging.retired()} == {200, staging.end}


@pytest.mark.parametrize(
    ("snapshot", "point", "kept_by_it"), [("700:700:", None, {(A, 300)}), ("900:900:", Lsn(250), {(A, 300)})]
)
def test_a_claim_that_is_not_applied_keeps_its_evidence(
    snapshot: str, point: Lsn | None, kept_by_it: set[tuple[str, int]], staging: Staging, ledger: str
) -> None:
    tables.add(staging.book, A)
    backfill = open_backfill(staging.book, A, snapshot="600:600:")
    chunk = chunk_of(backfill, snapshot=snapshot, consistent_point=point)
    assert record(ledger, chunk, done=True)
    staging.stage(A, max_xid=699)
    staging.stage(A, max_xid=700)
    staging.stage(claims={A: (claim_of(chunk, 350),)}, applied=False)
    backfills.close(staging.book, "b1", "a test closed it")
    merge_states.park(staging.book, A, BROKEN)
    staging.retire()
    assert {(A, 200), (A, 300), (A, 400)} - staging.retired() == {*kept_by_it, (A, 400)}


def test_a_backfill_whose_snapshot_is_older_than_a_clean_up_is_refused(staging: Staging) -> None:
    staging.stage(A, max_xid=700)
    staging.retire(xmin=701)
    with pytest.raises(SnapshotBeforeCleanUp, match="700"):
        open_backfill(staging.book, A, snapshot="700:702:")
    open_backfill(staging.book, A, snapshot="701:702:")


def test_the_next_plan_still_knows_where_the_last_one_ended_and_what_the_target_has(staging: Staging) -> None:
    for _ in range(5):
        last = staging.stage(A)
    staging.stage(B)
    staging.retire()
    staging.remove()
    assert staging.rows() == [(A, int(last)), (B, 700)]
    assert batches.previous_ends(staging.book, 1, {A: Lsn(700)}) == {A: last}
    merged = schema_versions.merged(staging.book, A)
    assert merged is not None
    assert [int(batch.end_lsn) for batch in batches.after(staging.book, 1, Lsn(0))] == [int(last), 700]


def test_the_version_of_the_target_is_known_where_only_chunks_came_since(staging: Staging, ledger: str) -> None:
    staging.stage(A)
    chunk = chunk_of(open_backfill(staging.book, A, sweeps=False))
    assert record(ledger, chunk, done=True)
    staging.stage(claims={A: (claim_of(chunk, 250),)})
    backfills.close(staging.book, "b1", "a test closed it")
    staging.retire()
    staging.remove()
    assert staging.rows() == [(A, 200), (A, 300)]
    assert schema_versions.merged(staging.book, A) is not None


def test_what_is_retired_is_no_evidence_any_more(staging: Staging) -> None:
    staging.stage(A, max_xid=700)
    staging.retire()
    # As a standby's snapshot may say that lacks the end of an old prepared transaction: it has seen 700 all the same.
    assert batches.evidence(staging.book, 1, A, Lsn(1000), NeededEvidence(600)) == []


def test_an_ended_backfill_leaves_what_says_that_rows_were_read(staging: Staging, ledger: str) -> None:
    for name, at in (("b1", 150), ("b2", 250)):
        tables.add(staging.book, A)
        backfill = open_backfill(staging.book, A, name, sweeps=False)
        chunk = chunk_of(backfill, rows=5 if name == "b1" else 0)
        assert record(ledger, chunk, done=True)
        staging.stage(claims={A: (claim_of(chunk, at),)})
        backfills.close(staging.book, name, "a test closed it")
    in_future = datetime.now(UTC) + timedelta(hours=1)
    assert retirement.ended_backfills(staging.book, in_future) == []
    staging.retire()
    ended = retirement.ended_backfills(staging.book, in_future)
    assert ended == ["b1", "b2"]
    for name in ended:
        retirement.backfill_removed(staging.book, name)
    assert chunks.has_read_rows(staging.book, A)
    assert [one for one in (backfills.one(staging.book, n) for n in ended) if one] != []


def learned(staging: Staging, removed_paths: Iterable[str] = (), keeping: tuple[str, ...] = ()) -> bool:
    file = RetiredFile("shop", 1, Lsn(300), 700, keeping)
    return restored_retirement.apply(
        staging.book, staging.lease, file, lambda paths: bool(set(paths) & set(removed_paths))
    )


def test_a_restored_ledger_learns_what_was_applied_and_closes_what_rests_on_it(staging: Staging) -> None:
    tables.add(staging.book, A)
    open_backfill(staging.book, A)
    staging.stage(A, applied=False, max_xid=700)
    staging.stage(A, applied=False)
    staging.stage(A, applied=False)
    assert learned(staging)
    assert [int(touched.end_lsn) for touched in batches.unapplied(staging.book)] == [400]
    assert staging.retired() == {(A, 200), (A, 300)}
    closed = backfills.one(staging.book, "b1")
    assert closed is not None
    assert (closed.state, closed.state_reason) == ("closed", restored_retirement.RESTORED)
    with pytest.raises(SnapshotBeforeCleanUp):
        open_backfill(staging.book, A, "b2", snapshot="700:700:")
    assert not learned(staging)


def test_of_a_table_that_kept_files_only_what_is_gone_counts_as_applied(staging: Staging) -> None:
    staging.stage(A, B, applied=False)
    staging.stage(A, B, applied=False)
    folder = path_of(manifest_of(100, 200, A)).rpartition("/")[0]
    assert learned(staging, removed_paths=[f"{folder}/{B}/v1-0.parquet"], keeping=(B,))
    assert {(p.table, int(p.end_lsn)) for p in batches.unapplied(staging.book)} == {(B, 300)}
