"""What an applied verify says of its parts, from the results of its chunks, without any Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.ledger.conftest import START, open_at
from tests.support.backfills import HALVES, open_backfill
from tests.support.hand_merged import HandMerged
from tests.support.pipeline import pipeline_config
from tidemark.backfill.verify_report import read_report, report
from tidemark.errors import BackfillNotApplied, DifferencesFound, DifferencesRepaired, NothingProven
from tidemark.formats.manifest import KeyPart, Purpose, Sweep
from tidemark.formats.merge_result import ChunkResult, Holes
from tidemark.ledger.captured import tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.observations import overview
from tidemark.ledger.reading import backfills, proofs
from tidemark.ledger.reading.backfills import Backfill
from tidemark.ledger.reading.chunks import ReadChunk
from tidemark.ledger.staged.generations import Generation

PARTS = tuple(KeyPart(half.lower, half.upper) for half in HALVES)


@pytest.fixture
def generation(book: Ledger, lease: Lease, tmp_path: Path) -> Generation:
    return open_at(book, lease, 1, START, lake=str(tmp_path))


@pytest.fixture
def world(tmp_path: Path, ledger: str, book: Ledger, lease: Lease, generation: Generation) -> HandMerged:
    config = pipeline_config("shop", tmp_path, (), {"park_after": 2})
    new_world = HandMerged(config, "", ledger, book, lease)
    new_world.stage("s.a")
    new_world.merge()
    proofs.cut(book, "s.a", [], PARTS, 20)
    return new_world


def verified(world: HandMerged, purpose: Purpose = "verify", parts: tuple[KeyPart, ...] | None = None) -> ReadChunk:
    """A verify whose one chunk is read and claimed, by the batch that ends its sweep."""
    backfill = open_backfill(world.book, "s.a", "v1", purpose=purpose, parts=parts, run_id="run1")
    chunk = world.read(backfill)
    world.claim(chunk, sweeps=(Sweep("v1", backfill.snapshot, 1, purpose, parts),))
    return chunk


def result(chunk: ReadChunk, **counts: Any) -> ChunkResult:
    figures = {"inserted": 0, "repaired": 0, "unchanged": 5, "overtaken": 0, "lost_by_window": 0, **counts}
    return ChunkResult(chunk.backfill, chunk.chunk, chunk.attempt, 5, **figures)


def proven(world: HandMerged) -> list[bool]:
    cut = proofs.cut_of(world.book, "s.a")
    assert cut is not None
    return [part.proven_lsn is not None for part in cut.parts]


def report_of(world: HandMerged) -> str:
    return str(report(world.task(run_id="run1")))


def test_parts_that_are_equal_are_proven_as_of_the_batch_that_claimed_the_last_of_them(world: HandMerged) -> None:
    chunk = verified(world, parts=PARTS[:1])
    with pytest.raises(BackfillNotApplied):
        report_of(world)
    world.merge((result(chunk),), {"v1": 0})
    assert proven(world) == [True, False]
    assert proofs.verified(world.book)["s.a"].through_lsn is None
    assert "1 of 2 parts equal to the source as of 0/12C" in report_of(world)
    world.mark()
    assert world.row().life.needs_backfill, "a verify of a part takes no mark away"


def test_verified_through_is_the_oldest_proof(world: HandMerged) -> None:
    world.merge((result(verified(world)),), {"v1": 0})
    first = proofs.verified(world.book)["s.a"]
    assert (first.parts, first.proven, str(first.through_lsn)) == (2, 2, "0/12C")
    backfill = open_backfill(world.book, "s.a", "v2", purpose="verify", parts=PARTS[1:], run_id="run2")
    chunk = world.read(backfill)
    world.claim(chunk, sweeps=(Sweep("v2", backfill.snapshot, 1, "verify", PARTS[1:]),))
    world.merge((result(chunk),), {"v2": 0})
    assert proofs.verified(world.book)["s.a"].through_lsn == first.through_lsn
    status = overview.read(world.book)
    assert status is not None
    assert [table.verified for table in status.tables if table.table == "s.a"] == [proofs.verified(world.book)["s.a"]]


def test_differences_are_said_by_kind_and_stay_until_they_are_gone(world: HandMerged) -> None:
    chunk = verified(world)
    world.merge((result(chunk, inserted=1, repaired=3, extra=1, columns={"note": 2}),), {"v1": 4})
    assert proven(world) == [False, False]
    words = "1 row is missing, 5 rows are not in the source, 2 rows differ in note (2)"
    with pytest.raises(DifferencesFound) as raised:
        report_of(world)
    assert words in str(raised.value)
    assert "differences/s/a" in str(raised.value)
    assert differences(world) == f"verify v1: {words}"
    fill = open_backfill(world.book, "s.a", "b1")
    world.claim(world.read(fill))
    world.merge()
    assert differences(world) == ""


def differences(world: HandMerged) -> str:
    status = overview.read(world.book)
    assert status is not None
    (table,) = (t for t in status.tables if t.table == "s.a")
    return table.differences


def test_what_is_repaired_is_proven_and_told_once(world: HandMerged) -> None:
    chunk = verified(world, "repair")
    world.merge((result(chunk, inserted=1),), {"v1": 0})
    assert proven(world) == [True, True]
    with pytest.raises(DifferencesRepaired, match="1 row is missing"):
        report_of(world)
    assert differences(world) == ""


def test_what_differs_is_said_whatever_else_is_not_known(world: HandMerged) -> None:
    world.merge((result(verified(world), inserted=1),))  # nobody knows of the sweep
    words = "1 row is missing, what became of 1 chunk is not known"
    with pytest.raises(DifferencesFound, match=words):
        report_of(world)
    assert differences(world) == f"verify v1: {words}"


@pytest.mark.parametrize("results", ["no chunk", "no sweep"])
def test_what_is_not_known_proves_nothing(world: HandMerged, results: str) -> None:
    chunk = verified(world)
    if results == "no chunk":
        world.merge((), {"v1": 0})
    else:
        world.merge((result(chunk),))
    assert proven(world) == [False, False]
    with pytest.raises(NothingProven, match="what became of 1 chunk is not known"):
        report_of(world)


def test_a_table_that_needs_a_backfill_by_then_proves_nothing(world: HandMerged) -> None:
    world.mark()
    chunk = verified(world)
    world.merge((result(chunk, inserted=2),), {"v1": 0})
    assert proven(world) == [False, False]
    assert differences(world) == ""
    with pytest.raises(NothingProven, match="needs a backfill"):
        report_of(world)
    assert world.row().life.needs_backfill


def test_an_open_verify_fills_no_hole_and_is_no_try_of_a_backfill(world: HandMerged) -> None:
    world.stage("s.a")
    open_backfill(world.book, "s.a", "v1", purpose="verify")
    world.merge(holes=Holes({"note": 2}, (("1",), ("2",))))
    assert world.row().life.needs_backfill
    assert backfills.tables_tried_within(world.book, 3600) == set()


def of_a_filter(world: HandMerged, verify: str, purpose: Purpose, **counts: Any) -> None:
    backfill = open_backfill(
        world.book, "s.a", verify, purpose=purpose, row_filter="id > 1", sweeps=False, run_id=verify
    )
    chunk = world.read(backfill)
    world.claim(chunk)
    world.merge((result(chunk, **counts),))


def test_a_filter_proves_no_part_and_reports_what_it_found(world: HandMerged) -> None:
    of_a_filter(world, "v1", "verify")
    assert proven(world) == [False, False]
    (table,) = read_report(world.task(run_id="v1")).tables
    assert "the rows of the filter equal to the source" in str(table)


def test_what_a_filter_found_stays_until_the_whole_table_is_proven(world: HandMerged) -> None:
    of_a_filter(world, "v1", "verify", repaired=2)
    assert differences(world) == "verify v1: 2 rows differ"
    of_a_filter(world, "v2", "repair", repaired=2)
    assert differences(world) == "verify v1: 2 rows differ", "others of the table may differ too"
    backfill = open_backfill(world.book, "s.a", "v3", purpose="repair", run_id="run3")
    chunk = world.read(backfill)
    world.claim(chunk, sweeps=(Sweep("v3", backfill.snapshot, 1, "repair"),))
    world.merge((result(chunk),), {"v3": 0})
    assert differences(world) == ""
    assert proven(world) == [True, True]


def test_a_verify_that_was_closed_proves_nothing(world: HandMerged) -> None:
    open_backfill(world.book, "s.a", "v1", *HALVES, purpose="verify", run_id="run1")
    backfills.close(world.book, "v1", "it is over")
    with pytest.raises(NothingProven, match="it is over"):
        report_of(world)


def test_cutting_anew_keeps_the_oldest_proof_only_if_there_is_one_everywhere(world: HandMerged) -> None:
    world.merge((result(verified(world, parts=PARTS[:1])),), {"v1": 0})
    cut = proofs.cut(world.book, "s.a", [], PARTS[:1], 10)
    assert [part.proven_at for part in cut.parts] == [None]
    assert (cut.estimated_rows, tables.one(world.book, "s.a") is not None) == (10, True)


def test_what_a_chunk_found_is_said_though_its_verify_never_ends(world: HandMerged) -> None:
    """And whether its result comes before it is closed, or after."""
    verify = open_backfill(world.book, "s.a", "v1", *HALVES, purpose="verify", run_id="run1")
    first = world.read(verify)
    world.claim(first)
    world.merge((result(first, inserted=1),))
    assert differences(world) == "verify v1: 1 row is missing"
    second = world.read(verify, "2-1")
    world.claim(second)
    backfills.close(world.book, "v1", "nobody read on")
    world.merge((result(second, repaired=1),))
    assert differences(world) == "verify v1: 1 row is missing, 1 row differs"
    assert proven(world) == [False, False]


def test_of_a_table_that_was_cut_anew_meanwhile_a_difference_is_said_and_nothing_is_proven(world: HandMerged) -> None:
    thirds = tuple(KeyPart(lower, upper) for lower, upper in [(None, ("5",)), (("5",), ("10",)), (("10",), None)])
    for number, (cut, counts, words) in enumerate(
        [(thirds, {}, ""), (PARTS, {"inserted": 1}, "verify v2: 1 row is missing")], 1
    ):
        before = proofs.cut_of(world.book, "s.a")
        assert before is not None
        part = before.parts[0].bounds
        verify = open_backfill(world.book, "s.a", f"v{number}", purpose="verify", parts=(part,))
        chunk = world.read(verify)
        world.claim(chunk, sweeps=(Sweep(f"v{number}", verify.snapshot, 1, "verify", (part,)),))
        proofs.cut(world.book, "s.a", [], cut, 20)
        world.merge((result(chunk, **counts),), {f"v{number}": 0})
        assert not any(proven(world))
        assert differences(world) == words
    now = proofs.cut_of(world.book, "s.a")
    assert now is not None
    assert [part.differing for part in now.parts] == [words] * 2


def test_parts_of_another_order_of_the_key_are_not_those_that_were_read(world: HandMerged) -> None:
    chunk = verified(world, parts=PARTS[:1])
    proofs.cut(world.book, "s.a", [["n", False]], PARTS, 20)
    world.merge((result(chunk),), {"v1": 0})
    assert proven(world) == [False, False]


def test_a_table_has_one_open_backfill_and_one_open_verify(world: HandMerged) -> None:
    fill = open_backfill(world.book, "s.a", "b1")
    verify = open_backfill(world.book, "s.a", "v1", purpose="verify", parts=PARTS)
    assert not backfills.create(world.book, Backfill(**_fields(verify, backfill="v2")), HALVES)
    both = backfills.open_of(world.book, "s.a"), backfills.open_of(world.book, "s.a", verifies=True)
    assert [one.backfill for one in both if one is not None] == ["b1", "v1"]
    assert both[1] is not None
    assert both[1].parts == PARTS
    backfills.close_of(world.book, "s.a", "enough")
    assert [backfills.one(world.book, one.backfill).state for one in (fill, verify)] == ["closed"] * 2  # type: ignore[union-attr]


def _fields(backfill: Backfill, /, **other: Any) -> dict[str, Any]:
    return {name: getattr(backfill, name) for name in Backfill.__dataclass_fields__} | other
