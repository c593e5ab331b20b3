"""Finds the columns of a Delta table that are renamed at the source by now: numbers and old names -> new names (R11).

A column is identified by its number at the source (`pg_attribute.attnum`), which its field in Delta stores. For a field
that does not store it, `called` has the names of earlier versions of the definition. Pure.

    field of the target    colour (2)   size (3)                       5 is new, and is added under its own name
    the source now         2 size       3 weight      5 colour   ──►   colour becomes size, size becomes weight

A dropped column keeps its field and so its name. If a column of the source has this name later, since it was added or
renamed, it is called `name__2` in the target, or by the first higher number that is free:

    field of the target    id (1)   size (2)                           2 is dropped, 4 was added
    the source now         1 id     4 size                      ──►   size (2) stays, 4 becomes size__2

A field without a number may have the name already: a repair by hand added it. Then the field becomes that column's
field, and the column with the other name stays, as a dropped one does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from tidemark.names import folded_names


class NamesAhead(Exception):
    """The target already has columns of a later version, under names that the version to merge uses otherwise.
    Internal."""


@dataclass(frozen=True, slots=True)
class Naming:
    """`names` maps old to new names of the fields that are renamed. `numbers` maps the present names of fields to their
    known column numbers."""

    names: dict[str, str]
    numbers: dict[str, int]


def naming(fields: Sequence[str], told: Mapping[str, int], called: Mapping[str, int], now: Mapping[int, str]) -> Naming:
    """The renames that a merge needs. `told` are the numbers that the fields store; `now` are the source's column names
    by number. Raises NamesAhead."""
    newest = max([*now, *called.values()], default=0)
    numbers = numbers_of(fields, told, called, now)
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


def numbers_of(
    fields: Sequence[str], told: Mapping[str, int], called: Mapping[str, int], now: Mapping[int, str]
) -> dict[str, int]:
    """The column number of each field, as far as it is known."""
    numbers = dict(told)
    for name in sorted(fields, key=lambda name: now.get(called.get(name, 0)) != name):
        number = called.get(name)
        if name not in told and number is not None and number not in numbers.values():
            numbers[name] = number
    return numbers


def names_in_target(here: Mapping[str, int], live: Mapping[int, str], gone: Mapping[int, str]) -> dict[int, str]:
    """The target's names for the source's columns and for dropped columns, by number.

    `here` are the target's fields by number, `live` the source's names, `gone` the last names of dropped columns. A
    dropped column keeps the name of its field. So does a column that already has its own name there, or its own name
    with a number: no other column takes it. The other columns take free names, in the order of their numbers.
    """
    at = {number: name for name, number in here.items()}
    names = {number: at[number] for number in gone if number in at}
    newest = max([*live, *gone], default=0)
    others = [name for number, name in at.items() if number not in live and number not in gone and number <= newest]
    taken = {folded for name in (*names.values(), *others) for folded in folded_names(name)}

    def is_free(name: str) -> bool:
        return taken.isdisjoint(folded_names(name))

    def take(number: int, name: str) -> None:
        names[number] = name
        taken.update(folded_names(name))

    for number, name in live.items():
        if at.get(number) == name and is_free(name):
            take(number, name)
    for number, name in live.items():
        field = at.get(number, "")
        if number not in names and not is_free(name) and _is_numbered(field, name) and is_free(field):
            take(number, field)
    for number, name in sorted({**gone, **live}.items()):
        if number not in names:
            numbered = (f"{name}__{n}" for n in count(2))
            take(number, name if is_free(name) else next(filter(is_free, numbered)))
    return names


def _is_numbered(field: str, name: str) -> bool:
    return field.startswith(f"{name}__") and field.removeprefix(f"{name}__").isdecimal()


def _refuse_ahead(number: int | None, name: str, newest: int) -> None:
    """Raises NamesAhead for a field with a higher number than all columns of the version. Numbers only grow, so the
    field was added later."""
    if number is not None and number > newest:
        raise NamesAhead(name)
