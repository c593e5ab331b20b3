"""R5, R7: what a plan lists for claimed chunks, and how their results end a backfill, without any Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import structs

from tests.ledger.conftest import open_at
from tests.support.backfills import HALVES, chunk_of, claim_of, open_backfill, record
from tests.support.hand_merged import HandMerged
from tests.support.manifests import manifest_of, schema_of
from tests.support.pipeline import pipeline_config
from tidemark.backfill.backfill_report import progress_lines, report
from tidemark.backfill.backfill_requests import RequestedTable, requested_tables
from tidemark.capture.merge_planning import ingest
from tidemark.errors import BackfillClosed, BackfillNotApplied
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.manifest import Sweep
from tidemark.formats.merge_result import MAX_HOLE_KEYS, ChunkResult, Holes
from tidemark.ledger import leases
from tidemark.ledger.captured import backfill_marks, joins, merge_states, schema_versions, tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.observations import overview
from tidemark.ledger.reading import backfills, chunks
from tidemark.ledger.reading.backfills import Range
from tidemark.ledger.reading.chunks import ReadChunk
from tidemark.ledger.staged import batches
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn, WalPoint
from tidemark.observe.status import Status
from tidemark.observe.status_text import text
from tidemark.schema.fingerprint import Fingerprint

NOW = datetime(2026, 11, 22, tzinfo=UTC)
Book = Ledger
SWEEP = Sweep("b1", "700:700:", 2)


@pytest.fixture
def world(tmp_path: Path, ledger: str, book: Book, lease: Lease, generation: Generation) -> HandMerged:
    config = pipeline_config("shop", tmp_path, (), {"park_after": 2})
    return HandMerged(config, "", ledger, book, lease)


def result_of(chunk: ReadChunk, inserted: int = 5, lost_by_window: int = 0) -> ChunkResult:
    return ChunkResult(chunk.backfill, chunk.chunk, chunk.attempt, 5, inserted, 0, 5 - inserted, 0, lost_by_window)


# --- plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_holds_claims_and_sweeps_where_they_were_registered(world: HandMerged) -> None:
    chunk = world.read(open_backfill(world.book, "s.a"))
    world.stage("s.a", max_xid=600)
    world.merge()
    world.claim(chunk, sweeps=(SWEEP,))
    table = world.planned()
    assert (table.after, [(b.files, b.claims, b.sweeps) for b in table.batches]) == (
        Lsn(200),
        [((), (claim_of(chunk, 299),), (SWEEP,))],
    )
    assert table.rows == 5
    assert [s.version for s in table.schemas] == [1]


def test_the_evidence_of_a_chunk_are_older_batches_with_a_transaction_it_may_not_have_seen(
    world: HandMerged,
) -> None:
    """Its snapshot is 710:712:711: everything below 710 was visible."""
    world.stage("s.a", max_xid=709)
    world.stage("s.a", "s.b", max_xid=710)
    world.stage("s.a", max_xid=705)
    world.merge()
    chunk = world.read(open_backfill(world.book, "s.a", sweeps=False))
    world.claim(chunk)
    table = world.planned()
    assert [(b.end_lsn, len(b.files)) for b in table.evidence] == [(Lsn(300), 1)]
    assert [s.version for s in table.schemas] == [1]


def test_the_least_xmin_of_all_chunks_and_sweeps_says_what_is_evidence(world: HandMerged) -> None:
    world.stage("s.a", max_xid=701)
    world.merge()
    backfill = open_backfill(world.book, "s.a", "b1", *HALVES)
    first, second = world.read(backfill, upper=("10",)), world.read(backfill, "2-1", lower=("10",), snapshot="720:720:")
    world.claim(first, second)
    assert world.planned().evidence == ()
    world.claim(sweeps=())
    world.merge()
    world.stage("s.a", sweeps={"s.a": (SWEEP,)})
    assert [b.end_lsn for b in world.planned().evidence] == [Lsn(200), Lsn(300)]


def test_a_chunk_of_an_exported_snapshot_has_what_committed_above_its_point_as_evidence(world: HandMerged) -> None:
    world.stage("s.a", max_xid=800)
    world.stage("s.a", max_xid=1)
    world.stage("s.b", max_xid=800)
    world.merge()
    backfill = open_backfill(world.book, "s.a", mode="exported_snapshot", sweeps=False)
    world.claim(world.read(backfill, consistent_point=Lsn(200)))
    assert [b.end_lsn for b in world.planned().evidence] == [Lsn(300)]


def test_a_sweep_has_the_other_chunks_of_its_backfill_as_evidence_and_no_others(world: HandMerged) -> None:
    old = world.read(open_backfill(world.book, "s.a", "b0", row_filter="true", sweeps=False))
    world.stage("s.a", max_xid=950, claims={"s.a": (claim_of(old, 199),)})
    world.merge()
    backfill = open_backfill(world.book, "s.a", "b1", *HALVES, snapshot="900:900:")
    first, second = world.read(backfill, upper=("10",)), world.read(backfill, "2-1", lower=("10",), snapshot="901:901:")
    world.claim(first)
    world.merge()
    world.claim(second, sweeps=(Sweep("b1", "900:900:", 2),))
    changed, evidence = world.planned().evidence
    assert (changed.end_lsn, len(changed.files), changed.claims) == (Lsn(200), 1, ())
    assert (evidence.end_lsn, evidence.files, [c.chunk for c in evidence.claims]) == (Lsn(300), (), ["1-1"])


def test_a_plan_without_chunks_has_no_evidence(world: HandMerged) -> None:
    world.stage("s.a", max_xid=900)
    world.merge()
    world.stage("s.a", max_xid=901)
    assert world.planned().evidence == ()


def test_evidence_is_of_the_same_generation(world: HandMerged) -> None:
    world.stage("s.a", max_xid=900)
    world.merge()
    open_at(world.book, world.lease, 2, Lsn(500), lake=world.config.lake)
    world.end = 500
    chunk = world.read(open_backfill(world.book, "s.a", generation=2, sweeps=False))
    world.claim(chunk, generation=2)
    assert world.planned().evidence == ()


def test_the_target_takes_the_shape_of_a_reader_that_was_ahead_of_the_stream(world: HandMerged) -> None:
    world.stage("s.a")
    wide = schema_versions.adopt(world.book, schema_of("s.a", 0, ("id", "one", "two")))
    between = schema_of("s.a", 3, ("id", "one"))
    manifest = manifest_of(200, 300, "s.a", schemas=(between,))
    (table,) = manifest.tables
    files = (structs.replace(table.files[0], schema_version=3),)
    manifest = structs.replace(manifest, tables=(structs.replace(table, files=files),))
    batches.register(world.book, world.lease, manifest, "m")
    world.end = 300
    assert [s.version for s in world.planned().schemas] == [1, 3]
    backfill = open_backfill(world.book, "s.a")
    chunk = chunk_of(backfill)
    assert record(world.ledger, replace(chunk, files=(structs.replace(chunk.files[0], schema_version=2),)), done=True)
    (read,) = chunks.unclaimed(world.book)
    world.claim(read)
    assert [s.version for s in world.planned().schemas] == [1, 3, wide.version]


def test_a_plan_says_whether_the_table_had_holes(world: HandMerged) -> None:
    world.stage("s.a")
    assert not world.planned().had_holes
    world.merge(holes=Holes({"body": 1}, (("1",),)))
    world.stage("s.a")
    assert world.planned().had_holes


# --- results ----------------------------------------------------------------------------------------------------------


def test_a_backfill_is_applied_with_the_batch_of_its_last_claim(world: HandMerged) -> None:
    world.mark()
    backfill = open_backfill(world.book, "s.a", "b1", *HALVES)
    first, second = world.read(backfill, upper=("10",)), world.read(backfill, "2-1", lower=("10",))
    world.claim(first)
    plan = world.plan()
    last = world.claim(second, sweeps=(SWEEP,))
    world.stage("s.a")
    world.merge((result_of(first),), plan=plan)
    assert world.backfill().state == "open"
    assert world.row().life.needs_backfill
    world.merge((result_of(second, 3),), {"b1": 2})
    ended = world.backfill()
    assert (ended.state, ended.complete_lsn, ended.swept) == ("applied", Lsn(last), 2)
    assert ended.ended_at is not None
    assert not world.row().life.needs_backfill


def test_a_backfill_with_something_unread_or_unclaimed_is_not_applied(world: HandMerged) -> None:
    backfill = open_backfill(world.book, "s.a", "b1", *HALVES)
    world.claim(world.read(backfill, upper=("10",)))
    world.merge()
    assert world.backfill().state == "open"
    world.read(backfill, "2-1", lower=("10",))
    world.stage("s.a")
    world.merge()
    assert world.backfill().state == "open"


def test_a_driver_that_died_after_its_work_leaves_the_backfill_applied_and_counts_unknown(
    world: HandMerged,
) -> None:
    chunk = world.read(open_backfill(world.book, "s.a"))
    world.claim(chunk, sweeps=(SWEEP,))
    world.plan()
    world.merge()  # the next plan finds "already at", and says nothing of chunks
    assert world.backfill().state == "applied"
    (table,) = report(world.task(run_id="backfill1")).tables
    assert (table.unknown, table.read, table.inserted, table.swept) == (1, 5, 0, None)
    assert "an unknown number swept" in str(table)
    assert "the rows of 1 chunk is not known" in str(table)


def test_a_plan_that_is_repeated_counts_once(world: HandMerged) -> None:
    chunk = world.read(open_backfill(world.book, "s.a"))
    world.claim(chunk, sweeps=(SWEEP,))
    first, second = world.plan(), world.plan()
    world.leave(first, (result_of(chunk, 4),), {"b1": 1})
    world.leave(second, (result_of(chunk, 5),), {"b1": 2})
    assert len(ingest(world.task()).plans) == 2
    (table,) = report(world.task(run_id="backfill1")).tables
    assert (table.inserted, table.unchanged, table.swept) == (5, 0, 2)


def test_a_mark_that_came_after_the_backfill_was_opened_stays(world: HandMerged) -> None:
    world.mark()
    backfill = open_backfill(world.book, "s.a")
    world.mark(backfill_marks.GAP)
    world.claim(world.read(backfill), sweeps=(SWEEP,))
    world.merge()
    assert world.backfill().state == "applied"
    assert world.row().backfill_kind == backfill_marks.GAP


def test_a_mark_that_was_asked_for_again_stays_too(world: HandMerged) -> None:
    world.mark(backfill_marks.GAP)
    backfill = open_backfill(world.book, "s.a")
    world.mark("rewritten")
    world.claim(world.read(backfill), sweeps=(SWEEP,))
    world.merge()
    assert world.row().life.needs_backfill


def test_a_mark_stays_that_comes_after_the_backfill_on_a_ledger_whose_clock_steps_back(world: HandMerged) -> None:
    world.mark(backfill_marks.GAP)
    backfill = open_backfill(world.book, "s.a")
    world.book.execute("UPDATE tidemark.backfills SET opened_at = opened_at + interval '1 hour'")
    world.mark("rewritten")
    world.claim(world.read(backfill), sweeps=(SWEEP,))
    world.merge()
    assert world.row().life.needs_backfill


@pytest.mark.parametrize("restriction", [{"row_filter": "id > 3"}, {"mode": "keys"}])
def test_a_backfill_of_a_part_takes_no_mark_away(world: HandMerged, restriction: dict[str, str]) -> None:
    world.mark()
    backfill = open_backfill(world.book, "s.a", "b1", Range(keys=(("1",),)), sweeps=False, **restriction)
    world.claim(world.read(backfill))
    world.merge()
    assert (world.backfill().state, world.row().life.needs_backfill) == ("applied", True)


def test_holes_that_are_left_when_a_backfill_is_applied_mark_the_table(world: HandMerged) -> None:
    world.mark()
    chunk = world.read(open_backfill(world.book, "s.a"))
    world.stage("s.a")
    world.merge(holes=Holes({"body": 2}, (("1",), ("2",))))
    assert world.row().backfill_kind == backfill_marks.EXISTING_ROWS
    world.claim(chunk, sweeps=(SWEEP,))
    world.merge(holes=Holes({"body": 1}, (("2",),)))
    assert (world.backfill().state, world.row().backfill_kind, world.row().holes) == ("applied", "holes", {"body": 1})


def test_the_keys_that_fill_the_holes_take_their_mark_away(world: HandMerged) -> None:
    world.stage("s.a")
    world.merge(holes=Holes({"body": 1}, (("2",),)))
    backfill = open_backfill(world.book, "s.a", "b1", Range(keys=(("2",),)), mode="keys", sweeps=False)
    world.claim(world.read(backfill))
    world.merge(holes=Holes({}, ()))
    assert (world.backfill().state, world.row().life.needs_backfill, world.row().holes) == ("applied", False, {})


def test_an_older_result_that_comes_late_does_not_say_what_a_newer_one_said(world: HandMerged) -> None:
    """Its driver counted before the newer one's commit, and wrote its result behind it."""
    world.stage("s.a")
    late = world.plan()
    world.stage("s.a")
    newer = world.plan()
    world.merge(holes=Holes({"body": 1}, (("1",),)), plan=newer)
    world.merge(holes=Holes({}, ()), plan=late)
    assert (world.row().backfill_kind, world.row().holes) == ("holes", {"body": 1})


@pytest.mark.parametrize("is_told", [True, False])
def test_a_backfill_of_columns_takes_their_mark_away_if_it_is_known_what_became_of_its_chunks(
    world: HandMerged, is_told: bool
) -> None:
    """Else some of its rows may lack in the target, and nobody has said so."""
    world.join()
    backfill_marks.mark(world.book, "s.a", "rewritten", "a column was rewritten", (2,))
    chunk = world.read(open_backfill(world.book, "s.a", sweeps=False, columns=(2,)))
    world.claim(chunk)
    world.merge((result_of(chunk),) if is_told else ())
    assert (world.backfill().state, world.row().life.needs_backfill) == ("applied", not is_told)


# --- wanted -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sweeps", "meanwhile", "is_wanted"), [(True, False, False), (False, False, True), (True, True, True)]
)
def test_lost_keys_are_wanted_until_a_backfill_that_sweeps_them_is_applied(
    sweeps: bool, meanwhile: bool, is_wanted: bool, world: HandMerged
) -> None:
    """One that removes nothing leaves what the source lost; and if keys moved meanwhile, it may stand elsewhere."""
    world.join()
    backfill_marks.mark_lost(world.book, "s.a", "lost", [["1"], ["2"]])
    (one,) = requested_tables(world.task())
    assert (one.mode, one.keys) == ("keys", (("1",), ("2",)))
    chunk = world.read(open_backfill(world.book, "s.a", "b1", Range(keys=one.keys), mode="keys", sweeps=sweeps))
    if meanwhile:
        backfill_marks.spread_lost(world.book, ["s.a"])
    world.claim(chunk, sweeps=(structs.replace(SWEEP, chunks=1, keys=one.keys),) if sweeps else ())
    world.merge()
    assert world.backfill().state == "applied"
    assert [w.mode for w in requested_tables(world.task())] == (["chunks"] if meanwhile else ["keys"] * is_wanted)


def test_a_marked_table_is_wanted_until_a_backfill_of_it_is_applied(world: HandMerged) -> None:
    assert world.requested_tables() == []
    world.mark()
    assert world.requested_tables() == [RequestedTable("s.a", "chunks", (), "rows from before")]
    backfill = open_backfill(world.book, "s.a")
    with leases.hold(world.ledger, "shop", leases.of_range("b1", 1), "read/1"):
        assert world.requested_tables() == []
    (goes_on,) = world.requested_tables()
    assert "b1 is not finished, and nobody reads it" in goes_on.reason
    assert requested_tables(world.task(), quiet_s=600) == []
    chunk = world.read(backfill)
    assert world.requested_tables() == []
    world.claim(chunk, sweeps=(SWEEP,))
    world.merge()
    assert world.requested_tables() == []


def test_a_table_that_is_parked_or_not_captured_is_left_alone(world: HandMerged) -> None:
    for table in ("s.a", "s.b", "s.c"):
        world.mark(table=table)
    merge_states.park(world.book, "s.a", ErrorRecord("TableBroken", "FIX_TARGET", "broken"))
    joins.leave(world.book, "s.b")
    assert [w.table for w in world.requested_tables()] == ["s.c"]


def test_holes_are_wanted_by_their_keys_and_as_a_whole_where_there_are_too_many(world: HandMerged) -> None:
    joins.join(world.book, "s.a", 600, WalPoint(1, Lsn(50)), backfill=None)
    world.stage("s.a")
    world.merge(holes=Holes({"body": 1}, (("2", "x"),)))
    (wish,) = world.requested_tables()
    assert (wish.mode, wish.keys) == ("keys", (("2", "x"),))
    assert "x" not in repr(wish).replace("unchanged", "").replace("whose", "")
    many = tuple((str(n),) for n in range(MAX_HOLE_KEYS))
    merge_states.succeeded(world.book, {"s.a": Holes({"body": 2 * MAX_HOLE_KEYS}, many)})
    assert [(w.mode, w.keys) for w in world.requested_tables()] == [("chunks", ())]
    merge_states.succeeded(world.book, {"s.a": Holes({"body": 1}, ())})
    assert [(w.mode, w.keys) for w in world.requested_tables()] == [("chunks", ())]


def test_a_table_with_history_only_is_read_once(world: HandMerged) -> None:
    world.mark()
    looked = Fingerprint(1, 1, 1, "nothing", (), (), (), (), None, ())
    tables.keep_fingerprints(world.book, {"s.a": looked})
    backfill = open_backfill(world.book, "s.a", sweeps=False)
    world.claim(world.read(backfill))
    world.mark(backfill_marks.GAP)
    world.merge()
    assert world.row().life.needs_backfill
    assert world.requested_tables() == []
    tables.keep_fingerprints(world.book, {"s.a": structs.replace(looked, identity="full")})
    assert [w.table for w in world.requested_tables()] == ["s.a"]


# --- what is said -----------------------------------------------------------------------------------------------------


def pending(world: HandMerged) -> str:
    with pytest.raises(BackfillNotApplied) as raised:
        report(world.task(run_id="backfill1"))
    return str(raised.value)


def test_the_report_waits_until_everything_is_applied_and_says_for_what(world: HandMerged) -> None:
    backfill = open_backfill(world.book, "s.a", "b1", *HALVES)
    first = world.read(backfill, upper=("10",))
    assert "s.a: 1 of 2 ranges is read, 5 rows so far" in pending(world)
    second = world.read(backfill, "2-1", lower=("10",))
    assert "2 of 2 chunks wait for a drain" in pending(world)
    last = world.claim(first, second, sweeps=(SWEEP,))
    assert "all 2 chunks are claimed and wait for a merge" in pending(world)
    merge_states.park(world.book, "s.a", ErrorRecord("TableBroken", "FIX_TARGET", "broken"))
    assert "the table is parked: TableBroken" in pending(world)
    merge_states.unpark(world.book, "s.a")
    world.merge((result_of(first, 2), result_of(second, 0, 3)), {"b1": 7})
    outcome = report(world.task(run_id="backfill1"))
    (table,) = outcome.tables
    assert (table.read, table.inserted, table.unchanged, table.lost_by_window, table.swept) == (10, 2, 8, 3, 7)
    assert table.complete_lsn == Lsn(last)
    assert f"s.a: complete as of {Lsn(last)}. 10 rows read in 2 chunks: 2 inserted" in str(outcome)
    assert outcome.to_json()[0]["complete_lsn"] == str(Lsn(last))


def test_the_report_of_a_closed_backfill_says_which_ranges_are_filled(world: HandMerged) -> None:
    backfill = open_backfill(world.book, "s.a", "b1", *HALVES)
    world.claim(world.read(backfill, upper=("10",)))
    chunk = chunk_of(backfill, "2-1", lower=("10",), upper=("secret",))
    assert record(world.ledger, chunk, done=False)
    world.claim(chunk)
    backfills.close(world.book, "b1", "another one takes its place")
    with pytest.raises(BackfillClosed) as raised:
        report(world.task(run_id="backfill1"))
    filled = "filled of 2 ranges: range 1 as a whole, range 2 up to chunk 2-1"
    assert f"s.a (another one takes its place; {filled})" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_the_report_says_that_rejected_chunks_are_read_again_by_clearing_the_readers(world: HandMerged) -> None:
    backfill = open_backfill(world.book, "s.a", "b1", *HALVES)
    first = world.read(backfill, upper=("10",))
    second = world.read(backfill, "2-1", lower=("10",))
    for chunk in (first, second):
        chunks.reject(world.book, chunk.id, "the table was altered")
    again = "2 chunks were read before the table changed and are read again: clear read_chunks"
    assert f"s.a: 2 of 4 ranges are read, 0 rows so far, {again}" in pending(world)
    world.read(backfill, "3-1", upper=("10",))
    assert "1 chunk was read before the table changed" in pending(world)
    world.read(backfill, "4-1", lower=("10",))
    assert "before the table changed" not in pending(world)


def test_ranges_that_nobody_read_are_no_rejected_chunks(world: HandMerged) -> None:
    backfill = open_backfill(world.book, "s.a", "b1", *HALVES)
    first = world.read(backfill, upper=("10",))
    chunks.reject(world.book, first.id, "the table was altered")
    world.read(backfill, "3-1", upper=("10",))
    line = pending(world)
    assert "s.a: 2 of 3 ranges are read, 5 rows so far" in line
    assert "before the table changed" not in line


def test_rejected_keys_are_counted_too(world: HandMerged) -> None:
    backfill = open_backfill(world.book, "s.a", "b1", Range(keys=(("1",), ("2",))), Range(keys=(("3",),)), mode="keys")
    first = world.read(backfill)
    chunks.reject(world.book, first.id, "the table was altered")
    assert "s.a: 1 of 3 ranges is read, 0 rows so far, 1 chunk was read before" in pending(world)


@pytest.mark.parametrize("restriction", [{"row_filter": "n > 5"}, {"mode": "keys"}])
def test_a_backfill_of_a_part_makes_no_table_complete(world: HandMerged, restriction: dict[str, str]) -> None:
    backfill = open_backfill(world.book, "s.a", sweeps=False, **restriction)
    last = world.claim(world.read(backfill))
    world.merge()
    line = str(report(world.task(run_id="backfill1")))
    assert f"s.a: the rows asked for are as of {Lsn(last)}. 5 rows read" in line
    assert "complete" not in line


def test_the_report_says_that_the_table_needs_another_backfill(world: HandMerged) -> None:
    world.mark()
    backfill = open_backfill(world.book, "s.a")
    world.claim(world.read(backfill), sweeps=(SWEEP,))
    backfill_marks.mark(world.book, "s.a", backfill_marks.GAP, "the slot lost changes")
    world.merge()
    outcome = report(world.task(run_id="backfill1"))
    assert "It needs another backfill: the slot lost changes." in str(outcome)
    assert outcome.to_json()[0]["needs_backfill"] == "the slot lost changes"


def test_a_table_that_leaves_takes_its_open_backfill_along(world: HandMerged) -> None:
    world.mark()
    backfill = open_backfill(world.book, "s.a", "b1", *HALVES)
    world.claim(world.read(backfill, upper=("10",)))
    joins.leave(world.book, "s.a")
    joins.join(world.book, "s.a", 600, WalPoint(1, Lsn(50)), backfill=(backfill_marks.REJOINED, "it was away"))
    assert not record(world.ledger, chunk_of(backfill, "2-1", lower=("10",)), done=True)
    ended = world.backfill()
    assert (ended.state, ended.state_reason) == ("closed", "its table left the pipeline file or the publication")
    world.merge()
    assert world.row().life.needs_backfill
    assert [w.table for w in world.requested_tables()] == ["s.a"]
    with pytest.raises(BackfillClosed, match="left the pipeline file"):
        report(world.task(run_id="backfill1"))


def test_how_far_a_run_is_names_what_is_read_and_filled_without_any_value(world: HandMerged) -> None:
    backfill = open_backfill(world.book, "s.a", "b1", *HALVES)
    world.claim(world.read(backfill, upper=("10",)))
    assert record(world.ledger, chunk_of(backfill, "2-1", lower=("10",), upper=("secret",)), done=False)
    (line,) = progress_lines(world.task(run_id="backfill1"))
    assert "s.a: 10 of about 20 rows read in 2 chunks, 1 of 2 ranges done, 1 chunk claimed" in line
    assert line.endswith("; filled of 2 ranges: range 1 as a whole")
    assert "secret" not in line
    assert progress_lines(world.task(run_id="another")) == []


def test_a_run_whose_backfills_were_adopted_has_nothing_to_report(world: HandMerged) -> None:
    open_backfill(world.book, "s.a")
    backfills.adopt(world.book, "b1", "backfill2")
    assert "another run goes on with it" in str(report(world.task(run_id="backfill1")))


def test_the_status_shows_open_backfills_without_any_value(world: HandMerged) -> None:
    backfill = open_backfill(world.book, "s.a", "b1", *HALVES)
    chunk = chunk_of(backfill, "1-1", upper=("secret",))
    assert record(world.ledger, chunk, done=False)
    world.claim(chunk)
    reading = overview.read(world.book)
    assert reading is not None
    (open_one,) = reading.backfills
    assert (open_one.progress.rows, open_one.progress.claimed, open_one.read_by) == (5, 1, None)
    assert open_one.filled == (1,)
    shown = text(Status(config=world.config, ledger=reading, slot=None, unusable=None, unseen={}, now=NOW))
    assert "backfill b1 of s.a, open since" in shown
    assert "nobody reads it" in shown
    assert "5 of about 20 rows read in 1 chunk" in shown
    assert "filled: range 1" in shown
    assert "secret" not in shown
    world.read(backfill, "2-1", lower=("10",))
    with leases.hold(world.ledger, "shop", leases.of_range("b1", 2), "read/7"):
        while_read = overview.read(world.book)
    assert while_read is not None
    assert while_read.backfills[0].read_by == "read/7"
