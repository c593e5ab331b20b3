"""Builds one SQL statement that takes from `history` the rows that `current` had at a position, for any engine. Pure.

    below the position ─► above the last truncate ─► the last row of each key ─► less deletes and sweeps

`validity` gives every state of each key with the range in which it was valid: up to the key's next change, or to the
next truncate. `with_deleted` gives the last state of each key, and when it was deleted.

Without a key: inserts and reads less deletes and sweeps, as multisets. Every scenario is judged by this statement
(docs/formats.md, Target tables). So it holds for every state, whatever became of the versions of `current`:

- A change of the key is a delete and an insert at one place.
- An unchanged value was filled in when it was merged. If it was nowhere, `_holes` names the column.
- A row from before a column was added has the column's default.
- A dropped column is NULL in rows that were written later.
- A masked value was masked in every row.

In the statement the table is called `history`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa

from tidemark.lake.delta_schemas import LakeColumn, TableShape
from tidemark.lake.dialects import Dialect, literal
from tidemark.lake.moments import Position
from tidemark.lsn import Lsn
from tidemark.names import ROW_HOLES
from tidemark.schema.values import convert

# Of the row that says what the key is; `_op` tells what the source did from what a backfill saw.
SAID_BY: Final = ("_commit_lsn", "_committed_at", "_op")

NEVER: Final = Position(2**31 - 1, Lsn(2**63 - 1))

# The columns by which changes are ordered (R1).
_PLACE: Final = ("_generation", "_commit_lsn", "_ordinal")

_AGE: Final = "__tidemark_age"
_COPIES: Final = "__tidemark_copies"
_COPY: Final = "__tidemark_copy"

_REMOVED: Final = "_op IN ('delete', 'sweep')"
# The delete of a change of the key comes before its insert; they are of one key where -0.0 becomes 0.0.
_NEWEST_FIRST: Final = f"_generation DESC, _commit_lsn DESC, _ordinal DESC, CASE WHEN {_REMOVED} THEN 0 ELSE 1 END DESC"
_STORED_APART: Final = ("string", "binary", "array", "map")  # TOAST may keep a value of these out of the change


@dataclass(frozen=True, slots=True)
class Truncated:
    """The position of a truncate."""

    generation: int
    commit_lsn: int
    ordinal: int


def precedes(one: Sequence[object], other: Sequence[object]) -> str:
    """Whether the first place comes before the second; each has a generation, and a position in it of one or two
    parts."""
    (first, *rest), (of_other, *rest_of_other) = one, other
    if not rest:
        return f"{first} < {of_other}"
    return f"({first} < {of_other} OR ({first} = {of_other} AND {precedes(rest, rest_of_other)}))"


def below(position: Position) -> str:
    """The history's rows below the position."""
    return precedes(("_generation", "_commit_lsn"), (position.generation, int(position.lsn)))


def above(truncated: Truncated | None) -> str:
    """The rows behind the last truncate; all rows if there was none."""
    if truncated is None:
        return "TRUE"
    return precedes((truncated.generation, truncated.commit_lsn, truncated.ordinal), _PLACE)


def last_truncate(history: str, position: Position) -> str:
    """At most one row: generation, commit_lsn, ordinal."""
    return (
        "SELECT _generation AS generation, _commit_lsn AS commit_lsn, _ordinal AS ordinal "
        f"FROM {history} WHERE _op = 'truncate' AND {below(position)} "
        "ORDER BY _generation DESC, _commit_lsn DESC, _ordinal DESC LIMIT 1"
    )


def extents(history: str) -> str:
    """One row per generation: its number, its first and last commit, and the last commit of a backfill that added
    what no change had."""
    return (
        "SELECT _generation AS generation, min(_commit_lsn) AS first, max(_commit_lsn) AS last, "
        "max(CASE WHEN _op IN ('read', 'sweep') THEN _commit_lsn END) AS seen "
        f"FROM {history} GROUP BY _generation ORDER BY _generation"
    )


def first_after(dialect: Dialect, history: str, time: datetime, bound: Position) -> str:
    """At most one row: the first commit below the bound, in commit order, with a later time."""
    return (
        f"SELECT _generation AS generation, min(_commit_lsn) AS lsn FROM {history} "
        f"WHERE _committed_at > {dialect.time(time)} AND {below(bound)} "
        "GROUP BY _generation ORDER BY _generation LIMIT 1"
    )


def rows(dialect: Dialect, shape: TableShape, history: str, position: Position, truncated: Truncated | None) -> str:
    """The source's columns, `_holes` for a table with a key, and SAID_BY."""
    values = [_value(dialect, column, position) for column in shape.columns]
    where = f"{below(position)} AND {above(truncated)}"
    if not shape.key:
        return _multiset(dialect, shape, values, f"{history} WHERE {where}")
    key = _key(dialect, shape)
    names = _names(dialect, shape)
    return (
        f"SELECT {names}, {_holes(dialect, shape)} AS {ROW_HOLES}, {', '.join(SAID_BY)} FROM ("
        f"SELECT {', '.join(values)}, _unchanged, {', '.join(SAID_BY)}, "
        f"row_number() OVER (PARTITION BY {key} ORDER BY {_NEWEST_FIRST}) AS {_AGE} "
        f"FROM {history} WHERE {where}) AS aged WHERE {_AGE} = 1 AND NOT ({_REMOVED})"
    )


def validity(dialect: Dialect, shape: TableShape, history: str, names: tuple[str, str, str]) -> str:
    """One row for each state in which a transaction left a key: the source's columns, `_holes`, the validity range
    by time, the flag, the range by position (`_generation`, `_commit_lsn`, `_until_generation`, `_until_lsn`: NULL for
    a state that is valid still), and `_op`.

    States that a later change of the same transaction replaced were never visible and are left out. `names` are the
    columns' names: valid from, valid to, and the flag. The statement reads the history of the time when it runs, so it
    may be a view. Only for tables with a key.
    """
    values = ", ".join(_value(dialect, column, NEVER) for column in shape.columns)
    columns = _names(dialect, shape)
    key = _key(dialect, shape)
    since, until, is_current = map(dialect.name, names)
    place = _PLACE
    in_order = f"OVER (ORDER BY {', '.join(place)})"
    truncates = ", ".join(
        [f"{name} AS cut{name}, lag({name}) {in_order} AS before{name}" for name in place] + ["_committed_at AS cut_at"]
    )
    window = (
        f"OVER (PARTITION BY {key}, cut_generation, cut_commit_lsn, cut_ordinal "
        f"ORDER BY {', '.join(place)}, CASE WHEN {_REMOVED} THEN 0 ELSE 1 END)"
    )
    following = ", ".join(
        f"lead({name}) {window} AS next{name}" for name in ("_generation", "_commit_lsn", "_committed_at")
    )
    ends = {"_generation": "cut_generation", "_commit_lsn": "cut_commit_lsn", "_committed_at": "cut_at"}
    ended = ", ".join(
        f"CASE WHEN next_generation IS NULL THEN {cut} ELSE next{name} END AS end{name}" for name, cut in ends.items()
    )
    return (
        f"SELECT {columns}, {_holes(dialect, shape)} AS {ROW_HOLES}, _committed_at AS {since}, "
        f"end_committed_at AS {until}, end_generation IS NULL AS {is_current}, _generation, _commit_lsn, "
        "end_generation AS _until_generation, end_commit_lsn AS _until_lsn, _op FROM ("
        f"SELECT *, {ended} FROM ("
        f"SELECT {values}, _unchanged, _committed_at, _op, {', '.join(place)}, cut_generation, cut_commit_lsn, cut_at, "
        f"{following} FROM {history} LEFT JOIN ("
        f"SELECT {truncates} FROM {history} WHERE _op = 'truncate') AS cuts "
        f"ON {precedes(place, [f'cut{name}' for name in place])} "
        f"AND (before_generation IS NULL OR {precedes([f'before{name}' for name in place], place)}) "
        "WHERE _op <> 'truncate') AS followed) AS states "
        f"WHERE NOT ({_REMOVED}) AND (end_generation IS NULL OR end_generation <> _generation "
        "OR end_commit_lsn <> _commit_lsn)"
    )


def with_deleted(dialect: Dialect, shape: TableShape, history: str, deleted_at: str) -> str:
    """The last state of each key: the source's columns, `_holes`, and, in the column of the given name, the time
    when a delete, a truncate or a change of the key ended it; NULL while the row exists. It may be a view, as
    `validity`. Only for tables with a key."""
    since, until, is_current, age = (f"__tidemark_{name}" for name in ("since", "until", "is_current", "age"))
    columns = _names(dialect, shape)
    key = _key(dialect, shape)
    return (
        f"SELECT {columns}, {ROW_HOLES}, {until} AS {dialect.name(deleted_at)} FROM ("
        f"SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY _generation DESC, _commit_lsn DESC) AS {age} "
        f"FROM ({validity(dialect, shape, history, (since, until, is_current))}) AS ranges) AS aged WHERE {age} = 1"
    )


def _multiset(dialect: Dialect, shape: TableShape, values: list[str], listed: str) -> str:
    """The rows of a table without a key. Copies of one row cannot be told apart, so all have the metadata of the
    last change of one of them."""
    names = _names(dialect, shape)
    alike = ", ".join(_stored(dialect, column) for column in shape.columns)
    metadata = ", ".join(dict.fromkeys(("_generation", "_commit_lsn", "_ordinal", *SAID_BY)))
    return (
        f"SELECT {names}, {', '.join(SAID_BY)} FROM ("
        f"SELECT {names}, {', '.join(SAID_BY)}, {dialect.one_of_each(_COPIES)} AS {_COPY} FROM ("
        f"SELECT *, row_number() OVER (PARTITION BY {alike} ORDER BY {_NEWEST_FIRST}) AS {_AGE}, "
        f"sum(CASE WHEN {_REMOVED} THEN -1 ELSE 1 END) OVER (PARTITION BY {alike}) AS {_COPIES} FROM ("
        f"SELECT {', '.join(values)}, {metadata} FROM {listed}) AS listed) AS aged "
        f"WHERE {_AGE} = 1 AND {_COPIES} > 0) AS copied"
    )


def _value(dialect: Dialect, column: LakeColumn, position: Position) -> str:
    """The value of a column at that time: for rows older than the column, its default if it had one."""
    name = dialect.name(column.name)
    if column.added_at is None or column.missing is None or position <= column.added_at:
        return name
    scalar = convert(pa.array([column.missing], pa.string()), column.target).values[0]
    value = literal(dialect, scalar.as_py(), column.target)
    return f"CASE WHEN {below(column.added_at)} THEN {value} ELSE {name} END AS {name}"


def _names(dialect: Dialect, shape: TableShape) -> str:
    return ", ".join(dialect.name(column.name) for column in shape.columns)


def _key(dialect: Dialect, shape: TableShape) -> str:
    by_name = {column.name: column for column in shape.columns}
    return ", ".join(_compared(dialect, by_name[name]) for name in shape.key)


def _compared(dialect: Dialect, column: LakeColumn) -> str:
    """A column of the key as an index compares it: -0.0 equals 0.0."""
    name = dialect.name(column.name)
    return f"CASE WHEN {name} = 0 THEN 0 ELSE {name} END" if column.target in ("float", "double") else name


def _stored(dialect: Dialect, column: LakeColumn) -> str:
    """A column of a row without key as it is stored: -0.0 differs from 0.0."""
    name = dialect.name(column.name)
    return f"{name}, CAST({name} AS string)" if column.target in ("float", "double") else name


def _holes(dialect: Dialect, shape: TableShape) -> str:
    """The columns that the change did not send and no later merge filled. After a rename the list may be too long,
    never too short."""
    names = dialect.array([dialect.text(column.name) for column in shape.columns])
    unknown = {}
    for column in shape.columns:
        if column.name not in shape.key and column.target.startswith(_STORED_APART):
            unsent = dialect.has("_unchanged", dialect.text(column.name))
            if column.may_be_renamed:
                unsent = f"({unsent} OR {dialect.has_others('_unchanged', names)})"
            unknown[column.name] = f"{dialect.name(column.name)} IS NULL AND {unsent}"
    if not unknown:
        return "NULL"
    named = dialect.array(
        [f"CASE WHEN {condition} THEN {dialect.text(name)} ELSE '' END" for name, condition in unknown.items()]
    )
    anything = " OR ".join(f"({condition})" for condition in unknown.values())
    return f"CASE WHEN {anything} THEN {dialect.without(named, dialect.text(''))} END"
