"""Folds changes in the driver, in Arrow's columns, into the rows that history and current get.

    changes ─┬─ keys that moved, or lack a value ──► walked in Python, one by one (`change_walk`) ─┬─► history's rows
             └─ all others: the newest change of a key is its row ─────────────────────────────────┼─► current's rows
    current's files that may have one of the keys ──► the numbers of the rows to replace ──────────┘

A key's changes are walked if one of them lacks a value, moved the key, or moved another key to it. These keys exchange
values only with each other. All other changes stay in Arrow's columns. New keys above all keys of current, as most
inserts have, are compared with no row.
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

MAX_FILLED_BYTES: Final = 64 * 2**20  # of the values filled into the changes that did not send them
MAX_REPLACED: Final = 1_000_000  # rows of current that one merge replaces

# A file of current and the numbers of some of its rows.
Replaced = tuple[DataFile, Sequence[int]]
Mask = NDArray[np.bool_]

_REMOVES: Final = pa.array(["delete", "sweep"])


@dataclass(frozen=True, slots=True)
class NewestChanges:
    """All changes, and the last change of every key above the last truncate.

    `keys` has the key's columns of these last changes. `stays` is False for a last change that removes its row. First
    come the changes with the numbers `plain` in `changes`, then those of `walk`.
    """

    changes: pa.Table
    is_walked: Mask | None
    walk: WalkedChanges | None
    plain: pa.Array
    keys: Sequence[pa.ChunkedArray]
    stays: Mask
    truncated: bool

    @property
    def sought(self) -> Sequence[pa.ChunkedArray]:
        """The keys to look up in current.

        These are the keys of the rows that the changes replace. A truncate removes all rows of current. Then only the
        keys are needed whose unchanged values go to changes before the truncate.
        """
        if not self.truncated:
            return self.keys
        return [key.slice(0, 0) for key in self.keys] if self.walk is None else self.walk.keys(self.walk.base_rows)


@dataclass(frozen=True, slots=True)
class FoldedChanges:
    """The rows that history and current get.

    `newest` has all changes. They are history's rows, except for the changes that were walked: `walked` has their rows.
    `staying` has the row of each key that still has one, in the shape of current. `replaced` are the rows of current
    with one of the keys. `small` are small files of current that are rewritten in the same commit.
    """

    newest: NewestChanges
    walked: pa.Table | None
    staying: pa.Table
    replaced: Sequence[Replaced]
    counts: dict[str, int]
    small: SmallFiles

    @property
    def truncated(self) -> bool:
        """Whether a truncate removes all present rows of current."""
        return self.newest.truncated

    @property
    def has_holes(self) -> bool:
        """Whether a row of current gets a hole: an unchanged value that no row has."""
        return bool(self.staying[ROW_HOLES].null_count < self.staying.num_rows)

    def history(self, schema: TableSchema) -> pa.Table:
        """History's rows in R1 order: one row per change, two for a change of the key."""
        names, changes = change_shape(schema).names, self.newest.changes
        if self.walked is None or self.newest.is_walked is None:
            return changes.select(names)
        not_walked = changes.filter(pa.array(~self.newest.is_walked)).select(names)
        return in_order(pa.concat_tables([not_walked, self.walked.select(names)]))


def newest_changes(changes: pa.Table, schema: TableSchema) -> NewestChanges:
    """Select the last change of each key above the last truncate. Raises Declined.

    `changes` are in R1 order and have the columns of `change_reader`. Rows that chunks add may be among them.
    """
    key = schema.key
    ops = changes["_op"]
    is_truncate: Mask = np.asarray(pc.equal(ops, "truncate").to_numpy(), np.bool_)
    last = int(np.flatnonzero(is_truncate)[-1]) if is_truncate.any() else -1
    is_walked = _changes_to_walk(changes, key, is_truncate)
    plain = _newest_rows(changes, key, ~is_truncate if is_walked is None else ~(is_walked | is_truncate), last)
    keys = [changes[k].take(plain) for k in key]
    stays = pc.invert(pc.is_in(ops.take(plain), _REMOVES)).to_numpy()
    if is_walked is None:
        return NewestChanges(changes, None, None, plain, keys, stays, last >= 0)
    if int(is_walked.sum()) > MAX_WALKED:
        raise Declined("many changes are of keys that moved or lack values")
    walk = walk_changes(changes.filter(pa.array(is_walked)), key, [c.name for c in schema.columns])
    newest = list(walk.newest.values())
    all_keys = [pa.chunked_array([*a.chunks, *b.chunks], a.type) for a, b in zip(keys, walk.keys(newest), strict=True)]
    stays = np.concatenate([stays, np.array([walk.ops[row] != "delete" for row in newest], np.bool_)])
    return NewestChanges(changes, is_walked, walk, plain, all_keys, stays, last >= 0)


def fold_changes(newest: NewestChanges, schema: TableSchema, target: TargetRows) -> FoldedChanges:
    """Look up the keys in current, fill in unchanged values, and build the rows of both tables. Raises Declined."""
    found = target.find(newest.sought)
    counts = _counts(found, newest)
    if counts.get("updated") and _has_other_columns(target, schema):
        raise Declined("current has a column that the source has not, which rows that are written anew would lose")
    remaining = newest.plain.filter(pa.array(newest.stays[: len(newest.plain)]))
    staying = [_as_current_rows(newest.changes.take(remaining), schema)]
    walk, walked = newest.walk, None
    if walk is not None:
        walked = _fill_walked(newest, walk, target, found)
        of_walk = pa.array([row for row in walk.newest.values() if walk.ops[row] != "delete"], pa.int64())
        staying.append(_as_current_rows(walked.take(of_walk), schema))
    rows = pa.concat_tables(staying)
    if newest.truncated:
        return FoldedChanges(newest, walked, rows, (), counts, SmallFiles((), rows.slice(0, 0)))
    replaced = target.by_file(found)
    small = small_files.join_small_files(target, row_schema(schema), replaced)
    return FoldedChanges(newest, walked, rows, replaced, counts, small)


def _changes_to_walk(changes: pa.Table, key: Sequence[str], is_truncate: Mask) -> Mask | None:
    """A mask of the changes to walk: those of keys that moved or lack a value, and all truncates.

    None if no key moved or lacks a value.
    """
    lacks = pc.is_valid(changes["_unchanged"])
    pieces = [[changes[k].filter(lacks) for k in key]]
    if "_old_key" in changes.column_names:
        old_keys = changes["_old_key"]
        moves = old_keys.is_valid()
        pieces.append([changes[k].filter(moves) for k in key])
        old_keys = old_keys.filter(moves).combine_chunks()
        pieces.append([pa.chunked_array([field_of(old_keys, k)]) for k in key])
    keys = KeySet([changes[k].type for k in key], pieces)
    if not len(keys):
        return None
    return np.asarray(keys.holds([changes[k] for k in key]).to_numpy(), np.bool_) | is_truncate


def _newest_rows(changes: pa.Table, key: Sequence[str], chosen: Mask, last_truncate: int) -> pa.Array:
    """The number of each key's last change, among the chosen changes above the last truncate."""
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
    deleted = int((found.is_there & ~newest.stays).sum())
    return {"inserted": int(newest.stays.sum()) - updated, "updated": updated, "deleted": deleted}


def _fill_walked(newest: NewestChanges, walk: WalkedChanges, target: TargetRows, found: FoundRows) -> pa.Table:
    """The rows of the walked changes, with the values that were not sent filled in. Raises Declined."""
    numbers = list(range(len(walk.base)))
    if not newest.truncated:  # every key of `base` is among the looked-up keys, at this place
        places = {key: len(newest.plain) + n for n, key in enumerate(walk.newest)}
        numbers = [places[key] for key in walk.base]
    values, lacking = target.values(walk.unchanged(), found.first(numbers))
    if walk.bytes_filled(values) > MAX_FILLED_BYTES:
        raise Declined("values that were not sent are too large for the driver's memory")
    return walk.rows(values, lacking)


def _as_current_rows(rows: pa.Table, schema: TableSchema) -> pa.Table:
    shape = row_schema(schema)
    if ROW_HOLES not in rows.column_names:
        rows = rows.append_column(ROW_HOLES, pa.nulls(rows.num_rows, shape.field(ROW_HOLES).type))
    return rows.select(shape.names)


def _has_other_columns(target: TargetRows, schema: TableSchema) -> bool:
    """Whether somebody added columns to current. An update must keep their values, which rewritten rows would lose."""
    own = {*(c.name for c in schema.columns), *ROW_COLUMNS, ROW_HOLES}
    return not {field.name for field in target.current.schema().fields} <= own
