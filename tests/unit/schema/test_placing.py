"""Which column a name of the stream is, where a table is altered at random: the right one, or none."""

from __future__ import annotations

import random

import pytest

from tidemark.schema.placing import Published, place


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

    def published(self) -> Published:
        return Published(tuple(sorted(self.sent().items())), frozenset(self.columns))


@pytest.mark.parametrize("seed", range(40))
def test_a_message_is_placed_rightly_or_not_at_all(seed: int) -> None:
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
        message = table.sent()
        for _ in range(rng.randint(0, 3)):
            table.alter()
        numbers = place(list(message.values()), table.published(), before)
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
    now = Published(((1, "id"), (3, "note"), (4, "more")), frozenset({1, 3, 4}))
    assert place(["id", "note"], now, ()) == (1, 3)
    assert place(["id", "more"], now, ()) is None
    assert place(["id", "note", "more", "again"], now, ()) is None


def test_a_rename_a_swap_and_a_new_column_of_the_old_name_are_told_apart() -> None:
    now = Published(((1, "id"), (2, "b"), (3, "a"), (4, "c")), frozenset({1, 2, 3, 4}))
    assert place(["id", "a", "b"], now, [(1, 2, 3)]) == (1, 2, 3)  # before they swapped
    assert place(["id", "b", "a", "c"], now, [(1, 2, 3)]) == (1, 2, 3, 4)
    gone = Published(((1, "id"), (3, "a"), (4, "c")), frozenset({1, 3, 4}))
    assert place(["id", "a"], gone, [(1, 2, 3)]) is None  # 2 or 3
    assert place(["id", "a", "c"], gone, [(1, 2, 3), (1, 3)]) == (1, 3, 4)
