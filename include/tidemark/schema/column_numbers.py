"""Which columns of the catalogue the columns of a RELATION message are: names of then -> numbers (R11).

The stream sends names in the order of pg_attribute, and nothing else that would tell a column that was renamed from one
that was dropped while another came. The catalogue knows numbers, of now. A number is never given out again, and new
columns only ever get higher ones. So a message had every column of the version before that is still there, of those
that are gone any, and of the new ones the first few; as many in all as it has names, whatever they are called:

    the version before   id 1   colour 2                    its numbers are known
    the catalogue now    id 1   paint 2   weight 3          nothing of 1, 2 is gone
    a message            id     colour              ──►  1, 2: the rename is still to come
    a message            id     paint     weight    ──►  1, 2, 3: renamed, and one came

    the catalogue now    id 1             colour 3          2 is gone
    a message            id                         ──►  1: after the one, before the other
    a message            id     colour              ──►  1, 2 or 1, 3

Where more than one reading is left, none is certain: `place` says None. `likely` then goes by the ids of the
transactions that added and dropped columns, which mostly are in the order of their commits, and need not be: whoever
takes its word marks the table. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from typing import Final

# Beyond so many, no reading is worth a guess.
MOST_READINGS: Final = 200


@dataclass(frozen=True, slots=True)
class Published:
    """The columns of a table that the stream sends, as the catalogue has them now: numbers and names, in order. `live`
    are the numbers of all its columns, published or not; `gone` those of dropped ones that a message may still have
    had, as far as `live` does not say it: the highest numbers. `settled` are dropped ones that no message of the stream
    from here on can have. `xmins` are the transactions, 32 bits, that last wrote each column's row of pg_attribute:
    that of a dropped one dropped it."""

    columns: tuple[tuple[int, str], ...]
    live: frozenset[int]
    gone: frozenset[int] = frozenset()
    settled: frozenset[int] = frozenset()
    xmins: Mapping[int, int] = field(default_factory=dict)


def place(names: Sequence[str], now: Published, before: Iterable[Collection[int]]) -> tuple[int, ...] | None:
    """The numbers of a message's columns, None if they are not certain.

    `before` are the numbers that the stream sent in the versions before, oldest first. Without any, the message is
    placed if no column of the table was ever dropped, and all are published; or else if it has the names that the
    catalogue has now, in the same order.
    """
    earlier = [frozenset(numbers) for numbers in before if numbers]
    if earlier:
        possible = readings(names, now, earlier)
        return possible[0] if len(possible) == 1 and _has_names(possible[0], names, now, earlier[-1]) else None
    if len(names) > len(now.columns):
        return None
    placed = now.columns[: len(names)]
    if {number for number, _ in now.columns} == now.live == set(range(1, len(now.live) + 1)) and not now.gone:
        return _numbers(placed)  # nothing is gone that it could have had: it has the first ones
    return _numbers(placed) if [name for _, name in placed] == list(names) else None


def readings(names: Sequence[str], now: Published, before: Iterable[Collection[int]]) -> list[tuple[int, ...]]:
    """Every way to read the message, given one version before at least; none where another column list may hold, or
    where they are too many."""
    earlier = [frozenset(numbers) for numbers in before if numbers]
    last = earlier[-1]
    called = dict(now.columns)
    if {number for number in called if number <= max(last)} != last & now.live:
        return []  # another column list, or a generated column that became an ordinary one
    # What some version had and the last one had not was gone, or not published, before the message already; so was
    # what lies below the last one's highest number and is not in it.
    settled = (frozenset().union(*earlier) - last) | now.settled
    gaps = (frozenset(range(1, max(now.live, default=0))) - now.live) | now.gone
    gone = sorted(n for n in gaps - settled if n in last or n > max(last))
    stayed = sorted(last & now.live)
    added = [(number, name) for number, name in now.columns if number > max(last)]
    found: list[tuple[int, ...]] = []
    for new in range(len(added) + 1):
        left = len(names) - len(stayed) - new
        # A number above the first column that is still to come was not given out yet.
        could_be = [n for n in gone if n in last or new == len(added) or n < added[new][0]]
        if not 0 <= left <= len(could_be):
            continue
        if comb(len(could_be), left) > MOST_READINGS:
            return []
        for extra in combinations(could_be, left):
            numbers = tuple(sorted([*stayed, *(number for number, _ in added[:new]), *extra]))
            found.append(numbers)
    return found if len(found) <= MOST_READINGS else []


def _has_names(numbers: Sequence[int], names: Sequence[str], now: Published, last: Collection[int]) -> bool:
    """Whether the columns that the version before had not are called as they are now: one that was generated, and is
    published by now, would make all the others seem to be one further on."""
    called = dict(now.columns)
    return all(number in last or called.get(number, name) == name for number, name in zip(numbers, names, strict=True))


def likely(
    possible: Sequence[tuple[int, ...]], names: Sequence[str], now: Published, last: Collection[int], xid: int
) -> tuple[int, ...] | None:
    """Of several readings the one that agrees with the order of transaction ids, of the message's own and of those that
    added or dropped the columns in question; None if that is not one. `last` is what the version before had."""
    in_doubt = {n for numbers in possible for n in numbers if not all(n in others for others in possible)}

    def agrees(numbers: tuple[int, ...]) -> bool:
        for number in in_doubt & set(now.xmins):
            is_before = (now.xmins[number] - xid + 2**31) % 2**32 <= 2**31  # in the circle of 32 bits
            if number not in now.live and number not in last and not is_before:
                continue  # it came, and went later, and the catalogue has its going alone
            expected = is_before if number in now.live else not is_before
            if (number in numbers) != expected:
                return False
        return True

    agreeing = [numbers for numbers in possible if agrees(numbers)]
    return agreeing[0] if len(agreeing) == 1 and _has_names(agreeing[0], names, now, last) else None


@dataclass(frozen=True, slots=True)
class InDoubt:
    """A message that can be read in more than one way: all `readings`, the one that was taken, None if none was, and
    the columns that it may or may not mean, by their numbers, of those that are there now. `contested` are its names
    that a dropped column had and another one has."""

    readings: tuple[tuple[int, ...], ...]
    taken: tuple[int, ...] | None
    columns: tuple[int, ...]
    contested: tuple[str, ...]


def in_doubt(
    names: Sequence[str], now: Published, before: Sequence[Collection[int]], called: Mapping[int, str], xid: int | None
) -> InDoubt | tuple[int, ...] | None:
    """What becomes of a message that is not placed: the numbers where one reading alone has the names that columns had
    last (`called`) or have now, and brings no new one; None where that reading brings one, which is then merged by its
    name; else the doubt, with the reading that the ids of transactions make likely."""
    possible = readings(names, now, before)
    if len(possible) < 2:
        return None
    now_called = dict(now.columns)

    def agrees(numbers: tuple[int, ...]) -> bool:
        known = [{of[number] for of in (called, now_called) if number in of} for number in numbers]
        return all(not own_names or name in own_names for name, own_names in zip(names, known, strict=True))

    guess = None if xid is None else likely(possible, names, now, before[-1], xid)
    agreeing = [numbers for numbers in possible if agrees(numbers)]
    if len(agreeing) == 1 and guess in (None, agreeing[0]):
        return agreeing[0] if set(agreeing[0]) <= set(before[-1]) else None
    places = {
        number: {numbers.index(number) if number in numbers else None for numbers in possible} for number in now_called
    }
    contested = tuple(
        name
        for at, name in enumerate(names)
        if any(now_called.get(numbers[at]) == name and numbers[at] not in before[-1] for numbers in possible)
        and any(numbers[at] not in now.live and called.get(numbers[at], name) == name for numbers in possible)
    )
    columns = tuple(sorted(number for number, of_number in places.items() if len(of_number) > 1))
    return InDoubt(tuple(possible), guess, columns, contested)


def left(possible: Sequence[tuple[int, ...]], later: Collection[int], now: Published) -> list[tuple[int, ...]]:
    """The readings of a message that one behind it leaves, which certainly had the columns `later`: what is there now
    never went, and what was gone never came back."""
    return [
        numbers
        for numbers in possible
        if now.live.intersection(numbers) <= set(later) and {n for n in later if n <= max(numbers)} <= set(numbers)
    ]


def _numbers(columns: Iterable[tuple[int, str]]) -> tuple[int, ...]:
    return tuple(number for number, _ in columns)
