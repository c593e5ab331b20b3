"""Folds changes in the driver, as Arrow's columns, into the rows that history and current get.

    changes ─┬─ keys that moved, or lack a value ──► walked in Python, one by one (`change_walk`) ─┬─► history's rows
             └─ all others: the newest change of a key is its row ─────────────────────────────────┼─► current's rows
    current's files that may have one of the keys ──► which rows these replace ────────────────────┘

A key's changes are walked if one of them lacks a value, moved the key, or moved another key to it. These keys share no
values with others. All other changes stay in Arrow's columns. New keys above all keys of current, as most inserts have,
are compared with no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.formats.columns import row_schema
from tidemark.names import ROW_COLUMNS, ROW_HOLES
from tidemark.schema.table import TableSchema
from tidemark.target.delta.data_files import DataFile
from tidemark.target.driver import small_files
from tidemark.target.driver.arrow_columns import field_of
from tidemark.target.driver.change_reader import change_shape, in_order
from tidemark.target.driver.change_walk import WalkedChanges, walk_changes
from tidemark.target.driver.key_set import KeySet
from tidemark.target.driver.small_files import SmallFiles
from tidemark.target.driver.target_rows import FoundRows, TargetRows
from tidemark.target.merge_choice import MAX_WALKED, Declined

MAX_FILLED_BYTES: Final = 64 * 2**20  # of values that were not sent, filled into every change that lacks them
MAX_REPLACED: Final = 1_000_000  # rows of current

# Rows of a file of current, by their numbers.
Replaced = tuple[DataFile, Sequence[int]]
Mask = NDArray[np.bool_]

_REMOVES: Final = pa.array(["delete", "sweep"])


@dataclass(frozen=True, slots=True)
class NewestChanges:
    """All changes, and the last of every key above the last truncate: `keys` has their keys' columns, `stays` whether a
    row is left; the first of them are those of the rows `plain` of `changes`, behind them come those of `walk`."""

    changes: pa.Table
    is_walked: Mask | None
    walk: WalkedChanges | None
    plain: pa.Array
    keys: Sequence[pa.ChunkedArray]
    stays: Mask
    truncated: bool

    @property
    def sought(self) -> Sequence[pa.ChunkedArray]:
        """The keys of the rows of current that the changes replace, or, where a truncate removes them all, of those
        whose values changes before it left as they were."""
        if not self.truncated:
            return self.keys
        return [key.slice(0, 0) for key in self.keys] if self.walk is None else self.walk.keys(self.walk.base_rows)


@dataclass(frozen=True, slots=True)
class FoldedChanges:
    """`newest` has all changes, which are history's rows as they are but for those that are walked; these are `walked`.
    `staying` is the row of each key that is left with one, in the shape of current, `replaced` are the rows of current
    that have one of the keys, and `small` are small files of current that are written anew."""

    newest: NewestChanges
    walked: pa.Table | None
    staying: pa.Table
    replaced: Sequence[Replaced]
    counts: dict[str, int]
    small: SmallFiles

    @property
    def truncated(self) -> bool:
        """Whether nothing stays of current as it was."""
        return self.newest.truncated

    @property
    def has_holes(self) -> bool:
        """Whether a row has a value that is known nowhere."""
        return bool(self.staying[ROW_HOLES].null_count < self.staying.num_rows)

    def history(self, schema: TableSchema) -> pa.Table:
        """Every change, a row each, that of the key two, in R1 order."""
        names, changes = change_shape(schema).names, self.newest.changes
        if self.walked is None or self.newest.is_walked is None:
            return changes.select(names)
        others = changes.filter(pa.array(~self.newest.is_walked)).select(names)
        return in_order(pa.concat_tables([others, self.walked.select(names)]))


def newest_changes(changes: pa.Table, schema: TableSchema) -> NewestChanges:
    """`changes` are in R1 order, in the shape of `change_reader`; rows that chunks add may be among them. Raises
    Declined."""
    key = schema.key
    ops = changes["_op"]
    is_truncate: Mask = np.asarray(pc.equal(ops, "truncate").to_numpy(), np.bool_)
    last = int(np.flatnonzero(is_truncate)[-1]) if is_truncate.any() else -1
    is_walked = _walked(changes, key, is_truncate)
    plain = _newest(changes, key, ~is_truncate if is_walked is None else ~(is_walked | is_truncate), last)
    keys = [changes[k].take(plain) for k in key]
    stays = pc.invert(pc.is_in(ops.take(plain), _REMOVES)).to_numpy()
    if is_walked is None:
        return NewestChanges(changes, None, None, plain, keys, stays, last >= 0)
    if int(is_walked.sum()) > MAX_WALKED:
        raise Declined("many changes are of keys that moved or lack values")
    walk = walk_changes(changes.filter(pa.array(is_walked)), key, [c.name for c in schema.columns])
    newest = list(walk.newest.values())
    both = [pa.chunked_array([*a.chunks, *b.chunks], a.type) for a, b in zip(keys, walk.keys(newest), strict=True)]
    stays = np.concatenate([stays, np.array([walk.ops[row] != "delete" for row in newest], np.bool_)])
    return NewestChanges(changes, is_walked, walk, plain, both, stays, last >= 0)


def fold_changes(newest: NewestChanges, schema: TableSchema, target: TargetRows) -> FoldedChanges:
    """Raises Declined."""
    found = target.find(newest.sought)
    counts = _counts(found, newest)
    if counts.get("updated") and _has_other_columns(target, schema):
        raise Declined("current has a column that the source has not, which rows that are written anew would lose")
    left = newest.plain.filter(pa.array(newest.stays[: len(newest.plain)]))
    staying = [_in_current(newest.changes.take(left), schema)]
    walk, walked = newest.walk, None
    if walk is not None:
        walked = _filled(newest, walk, target, found)
        of_walk = pa.array([row for row in walk.newest.values() if walk.ops[row] != "delete"], pa.int64())
        staying.append(_in_current(walked.take(of_walk), schema))
    rows = pa.concat_tables(staying)
    if newest.truncated:
        return FoldedChanges(newest, walked, rows, (), counts, SmallFiles((), rows.slice(0, 0)))
    replaced = target.by_file(found)
    small = small_files.gathered(target, row_schema(schema), replaced)
    return FoldedChanges(newest, walked, rows, replaced, counts, small)


def _walked(changes: pa.Table, key: Sequence[str], is_truncate: Mask) -> Mask | None:
    """Which changes are of keys that moved or lack a value, and then all truncates too; None if no change is."""
    lacks = pc.is_valid(changes["_unchanged"])
    pieces = [[changes[k].filter(lacks) for k in key]]
    if "_old_key" in changes.column_names:
        before = changes["_old_key"]
        moves = before.is_valid()
        pieces.append([changes[k].filter(moves) for k in key])
        before = before.filter(moves).combine_chunks()
        pieces.append([pa.chunked_array([field_of(before, k)]) for k in key])
    keys = KeySet([changes[k].type for k in key], pieces)
    if not len(keys):
        return None
    return np.asarray(keys.holds([changes[k] for k in key]).to_numpy(), np.bool_) | is_truncate


def _newest(changes: pa.Table, key: Sequence[str], chosen: Mask, last_truncate: int) -> pa.Array:
    """The numbers of each key's last change, of those chosen, above the last truncate."""
    chosen[: last_truncate + 1] = False
    numbers = np.flatnonzero(chosen)
    places = [str(place) for place in range(len(key))]  # a name that begins with a dot would be a path to Arrow
    keys = changes.select(list(key)).rename_columns(places)
    if len(numbers) < changes.num_rows:
        keys = keys.take(pa.array(numbers))
    numbered = keys.append_column("row", pa.array(numbers, pa.int64()))
    newest = numbered.group_by(places).aggregate([("row", "max")])
    return newest["row_max"].combine_chunks().sort()


def _counts(found: FoundRows, newest: NewestChanges) -> dict[str, int]:
    if newest.truncated:
        return {"truncated": 1}
    if len(found.rows) > MAX_REPLACED:
        raise Declined("many rows of current are replaced")
    updated = int((found.is_there & newest.stays).sum())
    gone = int((found.is_there & ~newest.stays).sum())
    return {"inserted": int(newest.stays.sum()) - updated, "updated": updated, "deleted": gone}


def _filled(newest: NewestChanges, walk: WalkedChanges, target: TargetRows, found: FoundRows) -> pa.Table:
    """The walked changes, with the values that were not sent."""
    numbers = list(range(len(walk.base)))
    if not newest.truncated:  # a key whose values come from current is among those that are left, and stands there
        places = {key: len(newest.plain) + n for n, key in enumerate(walk.newest)}
        numbers = [places[key] for key in walk.base]
    values, lacking = target.values(walk.unchanged(), found.first(numbers))
    if walk.bytes_filled(values) > MAX_FILLED_BYTES:
        raise Declined("values that were not sent are too large for the driver's memory")
    return walk.rows(values, lacking)


def _in_current(rows: pa.Table, schema: TableSchema) -> pa.Table:
    shape = row_schema(schema)
    if ROW_HOLES not in rows.column_names:
        rows = rows.append_column(ROW_HOLES, pa.nulls(rows.num_rows, shape.field(ROW_HOLES).type))
    return rows.select(shape.names)


def _has_other_columns(target: TargetRows, schema: TableSchema) -> bool:
    """Whether somebody added columns to current: an update leaves them as they are."""
    own = {*(c.name for c in schema.columns), *ROW_COLUMNS, ROW_HOLES}
    return not {field.name for field in target.current.schema().fields} <= own
