"""Which columns of a Delta table are called otherwise by now: numbers and names of then -> names of now (R11).

A column is what it is by its number at the source (`pg_attribute.attnum`), which its field in Delta says; of a field
that does not say it, `called` does: what versions of the table's definition from before called their columns. Pure.

    field of the target    colour (2)   size (3)                       5 is new, and is added under its own name
    the source by now      2 size       3 weight      5 colour   ──►   colour becomes size, size becomes weight

A name may stand there already, under no number that is still there: somebody's repair added it, or a column had it that
is dropped by now. Then the drain has parked the table (`schema.evolution`), whoever goes on fills the column by a
backfill, and the field becomes that column's; what was called otherwise stays, as a dropped one does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class Ahead(Exception):
    """The target has columns from later than what shall be merged, under names that earlier ones had. Internal."""


@dataclass(frozen=True, slots=True)
class Naming:
    """`names` are the new ones by the old, of the fields that get one; `numbers` those of all fields of which it is
    known, by the names of now."""

    names: dict[str, str]
    numbers: dict[str, int]


def naming(fields: Sequence[str], told: Mapping[str, int], called: Mapping[str, int], now: Mapping[int, str]) -> Naming:
    """`told` are the numbers that fields say of themselves, `now` the names of the source's columns by their numbers.
    Raises Ahead."""
    newest = max([*now, *called.values()], default=0)
    numbers = dict(told)
    for name in sorted(fields, key=lambda name: now.get(called.get(name, 0)) != name):
        number = called.get(name)
        if name not in told and number is not None and number not in numbers.values():
            numbers[name] = number
    names = {name: now[n] for name, n in numbers.items() if now.get(n, name) != name}
    while taken := [(name, new) for name, new in names.items() if new in fields and new not in names]:
        for name, new in taken:
            _refuse_ahead(numbers.get(new), new, newest)
            del names[name]
            numbers[new] = numbers.pop(name)
    called_now = {names.get(name, name): n for name, n in numbers.items()}
    for number, name in now.items():
        if called_now.get(name, number) != number:
            _refuse_ahead(called_now[name], name, newest)
            called_now[name] = number
    return Naming(names, called_now)


def _refuse_ahead(number: int | None, name: str, newest: int) -> None:
    """Numbers are given out upwards, and never again: one above all that were there came later."""
    if number is not None and number > newest:
        raise Ahead(name)
