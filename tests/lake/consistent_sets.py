"""Defines when the tables of one position are a state that the source had: lists that transactions append their number
to, and registers that they set to it.

Every transaction appends to one list at least, so the lists say which transactions a state has. What the source did is
the list of what committed, in commit order. Source: Adya, "Weak Consistency", and Elle's inference from lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Committed:
    """`appended` and `written` are the keys of its lists and registers. Numbers of one session rise."""

    number: int
    session: int
    appended: frozenset[int]
    written: frozenset[int]


def violations(
    order: Sequence[Committed], lists: Mapping[int, Sequence[int]], registers: Mapping[int, int]
) -> Iterator[tuple[str, str]]:
    """What kind of thing is wrong with a state, and where. A register that nobody wrote is 0."""
    seen = {number for items in lists.values() for number in items}
    there = [one for one in order if one.number in seen]
    if unknown := seen - {one.number for one in order}:
        yield "never committed", str(sorted(unknown))
    if there != [*order[: len(there)]]:
        lacking = [one.number for one in order[: order.index(there[-1])] if one.number not in seen]
        yield "no prefix", f"{there[-1].number} is there, {lacking} before it are not"
    for session in {one.session for one in there}:
        last = max(one.number for one in there if one.session == session)
        if any(one.session == session and one.number < last and one.number not in seen for one in order):
            yield "a session's past is lost", f"of session {session} before {last}"
    for key, items in lists.items():
        expected = [one.number for one in there if key in one.appended]
        if len({*items}) < len(items):
            yield "twice", f"list {key}: {items}"
        elif lacking := [number for number in expected if number not in items]:
            yield "half a transaction", f"list {key} lacks {lacking}"
        elif [*items] != expected:
            yield "out of order", f"list {key}: {items}, not {expected}"
    for key, value in registers.items():
        newest = [0, *(one.number for one in there if key in one.written)][-1]
        if value not in seen | {0}:
            yield "half a transaction", f"register {key} has {value}, which no list has"
        elif value != newest:
            yield "a write is lost", f"register {key} has {value}, not {newest}"
