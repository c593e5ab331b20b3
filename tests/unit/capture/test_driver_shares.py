"""Which application merges which table, by what waits for it."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import pytest

from tidemark.capture.driver_shares import HUGE_S, TABLE_S, WORTH_S, expected_s, shares
from tidemark.ledger.staged.unapplied_changes import Backlog


def backlog(changes: int, size_bytes: int = 0) -> Backlog:
    return Backlog("s.a", 1, changes, size_bytes, datetime(2031, 5, 7, tzinfo=UTC), False, False)


def test_with_little_to_do_there_is_one_application() -> None:
    (share,) = shares({"s.a": 1.0, "s.b": 3.0}, 4, threads=1)
    assert (share.tables, share.seconds) == (("s.b", "s.a"), 4.0)


def test_nothing_to_do_is_no_application() -> None:
    assert shares({}, 4, threads=1) == []


def test_the_longest_table_has_an_application_to_itself_and_the_rest_is_even() -> None:
    expected = {"s.huge": 10 * WORTH_S, **{f"s.{n}": WORTH_S for n in range(6)}}
    first, *rest = shares(expected, 3, threads=1)
    assert first.tables == ("s.huge",)
    assert [(len(share.tables), share.seconds) for share in rest] == [(3, 3 * WORTH_S)] * 2


def test_a_huge_table_is_alone_though_the_others_are_not_worth_an_application() -> None:
    assert [s.tables for s in shares({"s.a": HUGE_S, "s.b": 1.0, "s.c": 1.0}, 4, threads=4)] == [
        ("s.a",),
        ("s.b", "s.c"),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_every_table_is_in_one_share_and_no_share_is_empty(seed: int) -> None:
    random = Random(seed)
    expected = {f"s.{n}": random.expovariate(1 / 40) for n in range(random.randint(1, 40))}
    applications, threads = random.randint(1, 6), random.randint(1, 4)
    spread = shares(expected, applications, threads)
    assert sorted(table for share in spread for table in share.tables) == sorted(expected)
    assert all(share.tables for share in spread)
    assert len(spread) <= applications
    least, most = min(s.seconds for s in spread), max(s.seconds for s in spread)
    assert most - least <= max(expected.values()), "longest first is never further apart than the longest"


def test_a_table_is_judged_by_rows_and_bytes() -> None:
    assert expected_s(backlog(0)) == TABLE_S
    assert expected_s(backlog(20_000)) == TABLE_S + 1
    assert expected_s(backlog(20_000, 50 * 2**20)) == TABLE_S + 5
