"""Which column a name of the stream is, where a table is altered at random: the right one, or none."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tidemark.schema.column_numbers import PublishedNumbers, place


class Altered:
    """A table whose columns come, go, are renamed and swap their names; `unpublished` ones never reach the stream."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.last = 0
        self.columns: dict[int, str] = {}
        self.unpublished: set[int] = set()
        for _ in range(rng.randint(1, 4)):
            self.add()

    def add(self) -> None:
        self.last += 1
        free = sorted(set("abcdefgh") - set(self.columns.values()))
        self.columns[self.last] = self.rng.choice(free)
        if self.last > 1 and self.rng.random() < 0.15:
            self.unpublished.add(self.last)

    def alter(self) -> None:
        numbers = [n for n in self.columns if n > 1]
        what = self.rng.choice(["add", "add", "drop", "rename", "swap"])
        if what == "add" and len(self.columns) < 7:
            self.add()
        elif what == "drop" and numbers:
            del self.columns[self.rng.choice(numbers)]
        elif what == "rename" and numbers:
            free = sorted(set("abcdefgh") - set(self.columns.values()))
            self.columns[self.rng.choice(numbers)] = self.rng.choice(free)
        elif what == "swap" and len(numbers) > 1:
            one, other = self.rng.sample(numbers, 2)
            self.columns[one], self.columns[other] = self.columns[other], self.columns[one]

    def sent(self) -> dict[int, str]:
        return {number: name for number, name in self.columns.items() if number not in self.unpublished}

    def published(self) -> PublishedNumbers:
        gone = frozenset(range(1, self.last + 1)) - frozenset(self.columns)
        return PublishedNumbers(tuple(sorted(self.sent().items())), frozenset(self.columns), gone)


@pytest.mark.parametrize("seed", range(40))
def test_a_message_is_placed_rightly_or_not_at_all(seed: int) -> None:
    """With and without what is known to be gone before it."""
    rng = random.Random(seed)
    placed = 0
    for _ in range(100):
        table = Altered(rng)
        before = [tuple(table.sent())]
        for _ in range(rng.randint(0, 2)):
            for _ in range(rng.randint(0, 3)):
                table.alter()
            before.append(tuple(table.sent()))
        for _ in range(rng.randint(0, 2)):
            table.alter()
        gone_before = frozenset(range(1, table.last + 1)) - frozenset(table.columns)
        message = table.sent()
        for _ in range(rng.randint(0, 3)):
            table.alter()
        names, now = list(message.values()), table.published()
        for settled in (frozenset(), gone_before):
            numbers = place(names, replace(now, settled=settled), before)
            assert numbers in (None, tuple(message))
        placed += numbers is not None
    assert placed > 30


@pytest.mark.parametrize("seed", range(10))
def test_without_a_version_before_a_message_is_placed_where_nothing_was_ever_dropped(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        table = Altered(rng)
        table.unpublished.clear()
        for _ in range(rng.randint(0, 3)):
            table.alter()
        message = table.sent()
        for _ in range(rng.randint(0, 3)):
            table.alter()
        is_whole = not table.unpublished and set(table.columns) == set(range(1, table.last + 1))
        if is_whole:
            assert place(list(message.values()), table.published(), ()) == tuple(message)


def test_without_a_version_before_the_names_must_be_those_of_now() -> None:
    now = PublishedNumbers(((1, "id"), (3, "note"), (4, "more")), frozenset({1, 3, 4}))
    assert place(["id", "note"], now, ()) == (1, 3)
    assert place(["id", "more"], now, ()) is None
    assert place(["id", "note", "more", "again"], now, ()) is None


def test_a_rename_a_swap_and_a_new_column_of_the_old_name_are_told_apart() -> None:
    now = PublishedNumbers(((1, "id"), (2, "b"), (3, "a"), (4, "c")), frozenset({1, 2, 3, 4}))
    assert place(["id", "a", "b"], now, [(1, 2, 3)]) == (1, 2, 3)  # before they swapped
    assert place(["id", "b", "a", "c"], now, [(1, 2, 3)]) == (1, 2, 3, 4)
    gone = PublishedNumbers(((1, "id"), (3, "a"), (4, "c")), frozenset({1, 3, 4}), frozenset({2}))
    assert place(["id", "a"], gone, [(1, 2, 3)]) == (1, 3)  # 3 is there still, whatever it was called
    assert place(["id", "a", "c"], gone, [(1, 2, 3)]) is None  # 1, 2, 3 or 1, 3, 4
    assert place(["id", "a", "c"], gone, [(1, 2, 3), (1, 3)]) == (1, 3, 4)


def test_a_name_that_a_dropped_column_had_is_the_later_ones_where_that_is_certain() -> None:
    now = PublishedNumbers(((1, "id"), (4, "a")), frozenset({1, 4}), frozenset({2, 3}))
    assert place(["id", "a"], now, [(1, 2)]) is None
    assert place(["id", "a"], replace(now, settled=frozenset({2, 3})), [(1, 2)]) == (1, 4)
    assert place(["id"], now, [(1, 2)]) == (1,)
    assert place(["id", "a"], now, [(1, 2), (1,)]) is None  # 3 came, and went


def test_a_column_that_was_seen_to_go_is_not_the_next_one_that_comes() -> None:
    """Its doubt would cost the table a backfill, and no row: the simulations end equal without this rule."""
    now = PublishedNumbers(((1, "id"), (2, "b"), (4, "c")), frozenset({1, 2, 4}), frozenset({3}))
    assert place(["id", "b", "c"], now, [(1, 2, 3)]) is None  # 1, 2, 3 or 1, 2, 4
    assert place(["id", "b", "c"], now, [(1, 2, 3), (1, 2)]) == (1, 2, 4)


def test_a_column_that_was_generated_is_no_reason_to_take_another_one_for_it() -> None:
    """3 was not published when the message was sent, and is now: it only seems to be the second of two."""
    now = PublishedNumbers(((1, "id"), (3, "sum"), (4, "a")), frozenset({1, 3, 4}), frozenset({2}))
    assert place(["id", "a"], now, [(1,)]) is None
