"""Numbers the columns of a RELATION message if the catalogue leaves only one way to do so (R11).

The stream sends column names in the order of pg_attribute. The catalogue has the present numbers. A number is never
given out again, and new columns only get higher ones. So a message has as many columns as it has names, whatever the
names are:

- all columns of the version before that still exist,
- some of the columns that no longer exist,
- the first few of the new columns.

    the version before   id 1   colour 2                    its numbers are recorded
    the catalogue now    id 1   paint 2   weight 3          neither 1 nor 2 is dropped
    a message            id     colour              ──►  1, 2: the rename is still to come
    a message            id     paint     weight    ──►  1, 2, 3: renamed, and one added

    the catalogue now    id 1             colour 3          2 is dropped
    a message            id                         ──►  1: after the drop, before the new column
    a message            id     colour              ──►  1, 2 or 1, 3: not certain

Names prove nothing: a column may have had the name of another. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishedNumbers:
    """The columns that the stream sends of a table, by the present catalogue: numbers and names, in order. `live` are
    the numbers of all columns of the table, published or not. `gone` are the numbers of dropped columns. `settled` are
    dropped columns that no message from here on can have."""

    columns: tuple[tuple[int, str], ...]
    live: frozenset[int]
    gone: frozenset[int] = frozenset()
    settled: frozenset[int] = frozenset()


def place(names: Sequence[str], now: PublishedNumbers, before: Iterable[Collection[int]]) -> tuple[int, ...] | None:
    """The numbers of a message's columns; None if they are not certain.

    `before` are the column numbers of the earlier versions in the stream, oldest first. Without earlier versions the
    numbers are certain in two cases: no column was ever dropped and all are published; or the message has the
    catalogue's names in the catalogue's order.
    """
    earlier = [frozenset(numbers) for numbers in before if numbers]
    if not earlier:
        return _place_first(names, now)
    last = earlier[-1]
    # What some version had and the last one had not was gone, or not published, before the message already.
    settled = (frozenset().union(*earlier) - last) | now.settled
    gone = [n for n in now.gone - settled if n in last or n > max(last)]
    if {number for number, _ in now.columns if number <= max(last)} != last & now.live:
        # Another column list, or a generated column that became an ordinary one.
        return None if gone or [name for _, name in now.columns] != list(names) else _numbers(now.columns)
    stayed = last & now.live
    added = [number for number, _ in now.columns if number > max(last)]
    more = len(names) - len(stayed)
    if more == 0:
        return tuple(sorted(stayed))
    if not gone and 0 < more <= len(added):
        return tuple(sorted([*stayed, *added[:more]]))
    # Either all that are gone were there, and none that came was; or all of both.
    if more == len(gone) + len(added):
        return tuple(sorted([*stayed, *gone, *added]))
    return None


def _place_first(names: Sequence[str], now: PublishedNumbers) -> tuple[int, ...] | None:
    if len(names) > len(now.columns):
        return None
    placed = now.columns[: len(names)]
    if {number for number, _ in now.columns} == now.live == set(range(1, len(now.live) + 1)) and not now.gone:
        return _numbers(placed)  # nothing is gone that it could have had: it has the first ones
    return _numbers(placed) if [name for _, name in placed] == list(names) else None


def _numbers(columns: Iterable[tuple[int, str]]) -> tuple[int, ...]:
    return tuple(number for number, _ in columns)
