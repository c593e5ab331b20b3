"""Which columns of the catalogue the columns of a RELATION message are: names of then -> numbers (R11).

The stream sends names in the order of pg_attribute, and nothing else that would tell a column that was renamed from one
that was dropped while another came. The catalogue knows numbers, of now. A number is never given out again, and new
columns only ever get higher ones. So if no column that the message may still have had is gone by now, the message's
columns are the first of those that are published now, whatever they are called:

    the version before   id 1   colour 2                    its numbers are known
    the catalogue now    id 1   paint 2   weight 3          nothing of 1, 2 is gone
    a message            id     colour              ──►  1, 2: the rename is still to come
    a message            id     paint     weight    ──►  1, 2, 3: renamed, and one came

Where one is gone, there is more than one way to read a message, and none is chosen: `place` says None. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Published:
    """The columns of a table that the stream sends, as the catalogue has them now: numbers and names, in order. `live`
    are the numbers of all its columns, published or not."""

    columns: tuple[tuple[int, str], ...]
    live: frozenset[int]


def place(names: Sequence[str], now: Published, before: Iterable[Collection[int]]) -> tuple[int, ...] | None:
    """The numbers of a message's columns, None if they are not certain.

    `before` are the numbers that the stream sent in the versions before, oldest first. Without any, the message is
    placed if no column of the table was ever dropped, and all are published; or else if it has the names that the
    catalogue has now, in the same order.
    """
    if len(names) > len(now.columns):
        return None
    placed = now.columns[: len(names)]
    earlier = [frozenset(numbers) for numbers in before if numbers]
    if not earlier:
        if {number for number, _ in now.columns} == now.live == set(range(1, len(now.live) + 1)):
            return _numbers(placed)  # nothing is gone that it could have had: it has the first ones
        return _numbers(placed) if [name for _, name in placed] == list(names) else None
    last = earlier[-1]
    # What some version had and the last one had not was gone, or not published, before the message already; so was
    # what lies below the last one's highest number and is not in it.
    settled = frozenset().union(*earlier) - last
    gaps = frozenset(range(1, max(now.live, default=0))) - now.live
    if any(number in last or (number > max(last) and number not in settled) for number in gaps):
        return None
    if sum(number <= max(last) for number, _ in now.columns) != len(last) or len(names) < len(last):
        return None  # another column list, or a generated column that became an ordinary one
    if any(number not in last and name != sent for (number, name), sent in zip(placed, names, strict=True)):
        return None
    return _numbers(placed)


def _numbers(columns: Iterable[tuple[int, str]]) -> tuple[int, ...]:
    return tuple(number for number, _ in columns)
