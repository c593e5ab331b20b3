"""Builds one SQL statement that takes from `history` the rows that `current` had at a position, for any engine. Pure.

    below the position ─► above the last truncate ─► the last row of each key ─► less deletes and sweeps

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

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa

from tidemark.lake.delta_schemas import LakeColumn, TableShape
from tidemark.lake.dialects import Dialect, literal
from tidemark.lake.moments import Position
from tidemark.names import ROW_HOLES
from tidemark.schema.values import convert

# Of the row that says what the key is; `_op` tells what the source did from what a backfill saw.
SAID_BY: Final = ("_commit_lsn", "_committed_at", "_op")

_AGE: Final = "__tidemark_age"
_COPIES: Final = "__tidemark_copies"
_COPY: Final = "__tidemark_copy"

_REMOVED: Final = "_op IN ('delete', 'sweep')"
# The delete of a change of the key comes before its insert; they are of one key where -0.0 becomes 0.0.
_NEWEST_FIRST: Final = f"_generation DESC, _commit_lsn DESC, _ordinal DESC, CASE WHEN {_REMOVED} THEN 0 ELSE 1 END DESC"
_STORED_APART: Final = ("string", "binary", "array", "map")  # TOAST may keep a value of these out of the change


@dataclass(frozen=True, slots=True)
class Truncated:
    """The place of a truncate."""

    generation: int
    commit_lsn: int
    ordinal: int


def below(position: Position) -> str:
    """The rows that the state at the position knows of."""
    return (
        f"(_generation < {position.generation} OR "
        f"(_generation = {position.generation} AND _commit_lsn < {int(position.lsn)}))"
    )


def above(truncated: Truncated | None) -> str:
    """The rows behind the truncate; every row without one."""
    if truncated is None:
        return "TRUE"
    generation, lsn, ordinal = truncated.generation, truncated.commit_lsn, truncated.ordinal
    return (
        f"(_generation > {generation} OR (_generation = {generation} AND "
        f"(_commit_lsn > {lsn} OR (_commit_lsn = {lsn} AND _ordinal > {ordinal}))))"
    )


def last_truncate(history: str, position: Position) -> str:
    """One row at most: generation, commit_lsn, ordinal."""
    return (
        "SELECT _generation AS generation, _commit_lsn AS commit_lsn, _ordinal AS ordinal "
        f"FROM {history} WHERE _op = 'truncate' AND {below(position)} "
        "ORDER BY _generation DESC, _commit_lsn DESC, _ordinal DESC LIMIT 1"
    )


def extents(history: str) -> str:
    """One row per generation: its number, the first and the last commit, and where a backfill last wrote what the
    changes alone had not told."""
    return (
        "SELECT _generation AS generation, min(_commit_lsn) AS first, max(_commit_lsn) AS last, "
        "max(CASE WHEN _op IN ('read', 'sweep') THEN _commit_lsn END) AS seen "
        f"FROM {history} GROUP BY _generation ORDER BY _generation"
    )


def first_after(dialect: Dialect, history: str, time: datetime) -> str:
    """One row at most: the first commit, in commit order, of a later time."""
    return (
        f"SELECT _generation AS generation, min(_commit_lsn) AS lsn FROM {history} "
        f"WHERE _committed_at > {dialect.time(time)} GROUP BY _generation ORDER BY _generation LIMIT 1"
    )


def rows(dialect: Dialect, shape: TableShape, history: str, position: Position, truncated: Truncated | None) -> str:
    """The source's columns, `_holes` of a table with a key, and SAID_BY."""
    values = [_value(dialect, column, position) for column in shape.columns]
    where = f"{below(position)} AND {above(truncated)}"
    if not shape.key:
        return _multiset(dialect, shape, values, f"{history} WHERE {where}")
    by_name = {column.name: column for column in shape.columns}
    key = ", ".join(_compared(dialect, by_name[name]) for name in shape.key)
    names = ", ".join(dialect.name(column.name) for column in shape.columns)
    return (
        f"SELECT {names}, {_holes(dialect, shape)} AS {ROW_HOLES}, {', '.join(SAID_BY)} FROM ("
        f"SELECT {', '.join(values)}, _unchanged, {', '.join(SAID_BY)}, "
        f"row_number() OVER (PARTITION BY {key} ORDER BY {_NEWEST_FIRST}) AS {_AGE} "
        f"FROM {history} WHERE {where}) AS aged WHERE {_AGE} = 1 AND NOT ({_REMOVED})"
    )


def _multiset(dialect: Dialect, shape: TableShape, values: list[str], listed: str) -> str:
    """Copies of one row are not told apart: all of them have the metadata of the last change of one of them."""
    names = ", ".join(dialect.name(column.name) for column in shape.columns)
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
    """The column as it was then: what older rows mean by NULL, if the column was there already."""
    name = dialect.name(column.name)
    if column.added_at is None or column.missing is None or position <= column.added_at:
        return name
    scalar = convert(pa.array([column.missing], pa.string()), column.target).values[0]
    value = literal(dialect, scalar.as_py(), column.target)
    return f"CASE WHEN {below(column.added_at)} THEN {value} ELSE {name} END AS {name}"


def _compared(dialect: Dialect, column: LakeColumn) -> str:
    """A column of the key as an index compares it: -0.0 is 0.0."""
    name = dialect.name(column.name)
    return f"CASE WHEN {name} = 0 THEN 0 ELSE {name} END" if column.target in ("float", "double") else name


def _stored(dialect: Dialect, column: LakeColumn) -> str:
    """A column of a row without key as it is stored: -0.0 is not 0.0."""
    name = dialect.name(column.name)
    return f"{name}, CAST({name} AS string)" if column.target in ("float", "double") else name


def _holes(dialect: Dialect, shape: TableShape) -> str:
    """The columns that the change did not send and nobody filled in. Where one had another name, rather too many."""
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
