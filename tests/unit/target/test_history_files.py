"""Which batches history gets as they were staged, by what their manifest says."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.formats.manifest import StagedFile
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.lsn import Lsn
from tidemark.target.driver.history_files import MAX_SMALL_FILES, MAX_STRETCHES, StagedHistoryFiles, as_staged

OTHER_SHAPE, SHAPE = 1, 2
LARGE = 2**30


def batch(number: int, *versions: int, unchanged: int = 0, bytes: int = LARGE) -> PlannedBatch:
    files = tuple(StagedFile(f"{number}/{at}", 1, bytes, "00", version) for at, version in enumerate(versions))
    return PlannedBatch(Lsn(100 * number), Lsn(100 * number + 100), files, unchanged, 0, 0)


def chosen(batches: Sequence[PlannedBatch]) -> StagedHistoryFiles:
    return as_staged(batches, {SHAPE})


def test_files_that_follow_each_other_have_one_stretch_until_a_row_is_computed() -> None:
    batches = [batch(1, SHAPE), batch(2), batch(3, SHAPE, SHAPE), batch(4, SHAPE, unchanged=1), batch(5, SHAPE)]
    kept = chosen(batches)
    assert [file.path for _, file in kept.files] == ["1/0", "3/0", "3/1", "5/0"]
    assert [file.path for file in kept.computed_files(batches)] == ["4/0"]
    assert kept.stretches == ((100, 400), (500, 600))


def test_files_of_another_shape_are_computed_with_their_whole_batch() -> None:
    assert chosen([batch(1, OTHER_SHAPE), batch(2, SHAPE, OTHER_SHAPE)]) == StagedHistoryFiles()


def test_files_that_alternate_too_often_with_others_are_all_computed() -> None:
    alternating = [batch(number, SHAPE, unchanged=number % 2) for number in range(2 * MAX_STRETCHES + 1)]
    assert chosen(alternating) == StagedHistoryFiles()
    assert len(chosen(alternating[:-1]).stretches) == len(chosen(alternating[:-1]).files) == MAX_STRETCHES


def test_files_that_would_be_crumbs_are_all_computed() -> None:
    crumbs = [batch(number, SHAPE, bytes=1) for number in range(MAX_SMALL_FILES + 1)]
    assert chosen(crumbs) == StagedHistoryFiles()
    assert len(chosen(crumbs[:-1]).files) == MAX_SMALL_FILES
    assert len(chosen([*crumbs[:-1], batch(99, SHAPE)]).files) == MAX_SMALL_FILES + 1
