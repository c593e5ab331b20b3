"""Masks and leaves out columns even if they are renamed: guards follow the column's number, not its name.

    file + catalogue ──bind──► guards: attnum -> how, and by which name of which table it came to be
    RELATION's names ──resolve──► leave_out and mask, by the names in the message

The stream has names of columns and no numbers, as they were at the time of the change. So a name counts as a column
only if one catalogue reading lies before the change and one after it, and the row of pg_attribute is the same in both:
then no rename happened in between. Any other name is only known not to be such a column. While a guarded column is
among these other names, each of them may be it, and is staged as NULL.

A guard stays with its column until the file has an entry for the column's present name (also `clear`), or removes its
entry while the column still has the old name. A column that inherits a guard is left out as before, or masked `null`:
hashing never continues under a new name, since nobody asked for a hash of that name. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

How = Literal["null", "sha256", "leave_out"]

# Attnum -> (name, xmin of the row of pg_attribute), of the columns that are not dropped.
Rows = Mapping[int, tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Guard:
    """`table` (an id) and `column` are the names under which the pipeline file guards the column."""

    how: How
    table: str
    column: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


Guards = Mapping[int, Guard]


class Rule(Protocol):
    """The rule of the pipeline file for a table, by column names (`config.TableRule`)."""

    @property
    def leave_out(self) -> tuple[str, ...]: ...
    @property
    def mask(self) -> dict[str, Literal["null", "sha256"]]: ...
    @property
    def clear(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class HiddenColumns:
    """The left-out and masked columns of a table, in the column names of one moment. `new_guards` are guards that only
    the message of that moment requires."""

    leave_out: tuple[str, ...]
    mask: dict[str, Literal["null", "sha256"]]
    new_guards: dict[int, Guard]


def guards(rule: Rule) -> bool:
    """Whether the file has an entry for the table that could guard a column."""
    return bool(rule.leave_out or rule.mask)


def how_by_file(rule: Rule, column: str) -> How | None:
    """How the pipeline file guards a column of this name."""
    return "leave_out" if column in rule.leave_out else rule.mask.get(column)


def bind(before: Guards, table: str, rows: Rows, rule: Rule) -> dict[int, Guard]:
    """The guards after a reading of the table's columns."""
    bound = dict(before)
    for attnum, (name, _) in rows.items():
        how, guard = how_by_file(rule, name), before.get(attnum)
        if how is not None:
            bound[attnum] = Guard(how, table, name)
        elif guard is not None and (name in rule.clear or (guard.table, guard.column) == (table, name)):
            del bound[attnum]
        elif guard is not None and guard.how == "sha256":
            bound[attnum] = replace(guard, how="null")
    return bound


def in_names(rule: Rule, columns: Iterable[tuple[int, str]], bound: Guards) -> HiddenColumns:
    """The hidden columns, in the names of a catalogue reading that is exact: attnum and name of each column."""
    hows = {name: bound[attnum].how if attnum in bound else how_by_file(rule, name) for attnum, name in columns}
    return _hidden(hows, {})


def inherited(table: str, rows: Rows, bound: Guards) -> dict[str, Guard]:
    """The columns, by their present names, whose guard was made for another name."""
    return {
        name: bound[attnum]
        for attnum, (name, _) in rows.items()
        if attnum in bound and (bound[attnum].table, bound[attnum].column) != (table, name)
    }


def unfit(required: Iterable[str], table: str, names: Iterable[str], rows: Rows, bound: Guards) -> list[str]:
    """The columns of the table's own entry in the file that the table does not have: neither in the catalogue, nor in
    the message, nor under an earlier name."""
    fitting = {*names, *(name for name, _ in rows.values())}
    fitting |= {bound[a].column for a in rows if a in bound and bound[a].table == table}
    return [column for column in required if column not in fitting]


def resolve(
    rule: Rule, table: str, names: Iterable[str], before: Rows | None, after: Rows, bound: Guards
) -> HiddenColumns:
    """The left-out and masked columns of a RELATION message of `table`.

    `before` is a reading of the columns that does not contain the change's transaction. If it is None, the names of
    `after` count as those of the change. `bound` are the guards after `after` was bound.
    """
    names = tuple(names)
    earlier = after if before is None else before
    certain = {name: attnum for attnum, (name, xmin) in after.items() if earlier.get(attnum) == (name, xmin)}
    settled = set(bound) <= set(certain.values())
    attnums = {name: attnum for attnum, (name, _) in after.items()}
    if before is None:
        candidates = [attnum for attnum, (name, _) in after.items() if name not in names]
    else:
        unclear = [attnum for attnum in after if attnum not in certain.values()]
        older = [attnum for attnum in unclear if attnum in before]
        # As many names that are not certain as columns that were there all the time: then these are they.
        candidates = older if sum(name not in certain for name in names) <= len(older) else unclear
    hows: dict[str, How | None] = {}
    guards_by_attnum: dict[int, Guard] = {}
    for name in names:
        how, attnum = how_by_file(rule, name), certain.get(name)
        if how is not None:
            hows[name] = how
            if attnum is not None:
                guards_by_attnum.setdefault(attnum, Guard(how, table, name))
            else:
                # It has another name by now, or none: it may be any of these.
                guards_by_attnum.update(
                    {other: Guard("null", table, name) for other in candidates if other not in guards_by_attnum}
                )
        elif attnum is not None:
            hows[name] = None if attnum not in bound else bound[attnum].how
        elif not settled:
            guard = bound.get(attnums.get(name, 0))
            hows[name] = "leave_out" if guard is not None and guard.how == "leave_out" else "null"
    return _hidden(hows, {attnum: guard for attnum, guard in guards_by_attnum.items() if attnum not in bound})


def _hidden(hows: Mapping[str, How | None], guards_by_attnum: dict[int, Guard]) -> HiddenColumns:
    return HiddenColumns(
        tuple(name for name, how in hows.items() if how == "leave_out"),
        {name: how for name, how in hows.items() if how in ("null", "sha256")},
        guards_by_attnum,
    )
