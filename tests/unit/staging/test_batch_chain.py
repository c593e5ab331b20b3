"""Of all complete manifests those that go on from a position, each where the one before it ended."""

from __future__ import annotations

from collections.abc import Container, Sequence
from random import Random

import pytest

from tests.support.manifests import SOURCE
from tidemark.lsn import Lsn
from tidemark.staging.batch_chain import StagedBatch, chain_from

Range = tuple[int, int]


def chain(start: int | None, ranges: Sequence[Range], *, named: Container[Range] = ()) -> list[Range]:
    """The chain's ranges, whatever the order in which the batches were found."""
    batches = [StagedBatch("path", Lsn(low), Lsn(high), f"a{low}-{high}", SOURCE, frozenset()) for low, high in ranges]
    Random(7).shuffle(batches)
    chosen = chain_from(None if start is None else Lsn(start), batches, lambda b: (b.start_lsn, b.end_lsn) in named)
    return [(int(batch.start_lsn), int(batch.end_lsn)) for batch in chosen]


def test_a_chain_ends_at_the_first_hole() -> None:
    assert chain(10, [(10, 20), (20, 30), (40, 50)]) == [(10, 20), (20, 30)]


@pytest.mark.parametrize("start", [None, 10])
def test_nothing_goes_on_where_nothing_begins(start: int | None) -> None:
    assert chain(start, [] if start is None else [(5, 15), (15, 20)]) == []


def test_of_two_with_one_start_the_one_whose_chain_reaches_further_comes_first() -> None:
    assert chain(10, [(10, 30), (10, 20), (20, 40)]) == [(10, 20), (20, 40)]


def test_what_plans_name_comes_before_what_reaches_further() -> None:
    ranges = [(10, 30), (30, 50), (10, 20), (20, 40)]
    assert chain(10, ranges, named={(10, 20)}) == [(10, 20), (20, 40)]
    assert chain(10, ranges, named={(10, 30), (10, 20), (20, 40)}) == [(10, 20), (20, 40)]
    assert chain(10, ranges, named={(10, 20), (30, 50)}) == [(10, 30), (30, 50)]


def test_without_a_start_it_is_the_lowest_that_reaches_as_far_as_any() -> None:
    assert chain(None, [(1, 5), (10, 20), (20, 30), (25, 30)]) == [(10, 20), (20, 30)]
