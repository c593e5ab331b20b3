"""Walks the changes of keys that moved or lack values one by one, in PostgreSQL's order, and fills in their values.

    changes of some keys, in R1 order ── walk_changes ──► WalkedChanges ── rows(base) ──► a row each, values filled in
                                              │                    ▲
                                              └── base: keys whose unchanged values come from their rows of current

The walk keeps row numbers, never values. Values stay in Arrow's arrays and are taken by row number at the end.

The result equals that of `split_identity`, `fill_unchanged` and `newest_per_key` in `spark.fold`, which computes it
with windows per key in R1 order. The newest value since the life's insert is the last one that the walk has met. A
change of the key passes the old life's values on to the new life. Above the plan's last truncate no value comes from
the target. tests/target/test_few_changes.py compares the two with each other and with the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.names import CHANGE_COLUMNS, MARK_COLUMNS, ROW_HOLES
from tidemark.target.driver.arrow_columns import Key, field_of, keys_of

# The source of a value that was not sent: the number of a staged row that has it, ~n for the nth key of `base`, or None
# if no row has it.
Place = int | None


@dataclass(slots=True)
class WalkedChanges:
    """The result of a walk: one row per change, two rows for a change of the key.

    `origin` has each row's staged change, by number. `old` marks the delete of the old key. `filled` has the sources of
    the values that were not sent, by row and column. `newest` has the last row of every key above the last truncate.
    `base` numbers the keys whose values come from current, and `base_rows` has one row of each.
    """

    staged: pa.Table
    key: Sequence[str]
    columns: Sequence[str]
    origin: list[int] = field(default_factory=list)
    old: list[bool] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    filled: dict[int, dict[str, Place]] = field(default_factory=dict)
    newest: dict[Key, int] = field(default_factory=dict)
    base: dict[Key, int] = field(default_factory=dict)
    base_rows: list[int] = field(default_factory=list)

    def keys(self, rows: Sequence[int]) -> list[pa.ChunkedArray]:
        """The key's columns of the rows with these numbers."""
        chosen = pa.array(rows, pa.int64())
        return [pa.chunked_array([self._values(name, None, ()).take(chosen)]) for name in self.key]

    def unchanged(self) -> list[str]:
        """The columns that were not sent by some change."""
        return sorted({name for places in self.filled.values() for name in places})

    def bytes_filled(self, base: Mapping[str, pa.Array]) -> int:
        """The number of bytes that `rows` would fill in for values that were not sent.

        A text of one megabyte fills a gigabyte if a thousand changes did not send it.
        """
        total = 0
        for name in self.unchanged():
            staged_lengths, base_lengths = _lengths(self.staged[name]), _lengths(base.get(name))
            places = (sources.get(name) for sources in self.filled.values())
            total += sum(
                staged_lengths[place] if place >= 0 else base_lengths[~place] for place in places if place is not None
            )
        return total

    def rows(self, base: Mapping[str, pa.Array], lacking: Sequence[frozenset[str]]) -> pa.Table:
        """All rows with their values filled in: metadata, columns, marks, ROW_HOLES.

        `base` has for each column of `unchanged` the values of the keys of `self.base`. `lacking` names for each of
        these keys the columns that have no value in current.
        """
        arrays = {name: self._metadata(name) for name in CHANGE_COLUMNS}
        arrays["_op"] = pa.array(self.ops, pa.string())
        for name in self.columns:
            arrays[name] = self._values(name, base.get(name), lacking)
        for name in MARK_COLUMNS:
            arrays[name] = self._metadata(name, of_old=False)
        arrays[ROW_HOLES] = pa.array([self._holes(row, lacking) for row in range(len(self.ops))], pa.list_(pa.string()))
        return pa.table(arrays)

    def _metadata(self, name: str, *, of_old: bool = True) -> pa.Array:
        rows = self.origin if of_old else self._new_row_origins
        return self.staged[name].combine_chunks().take(pa.array(rows, pa.int64()))

    @property
    def _new_row_origins(self) -> list[int | None]:
        """The staged change of each row; None for the delete of a changed key, which has only the old key's columns."""
        return [None if old else row for row, old in zip(self.origin, self.old, strict=True)]

    def _values(self, name: str, base: pa.Array | None, lacking: Sequence[frozenset[str]]) -> pa.Array:
        staged = self.staged[name].combine_chunks()
        places: list[int | None] = self._new_row_origins
        if name in self.key and any(self.old):
            old_values = field_of(self.staged["_old_key"].combine_chunks(), name)
            staged_count = len(staged)
            staged = pa.concat_arrays([staged, old_values])
            places = [staged_count + row if old else row for row, old in zip(self.origin, self.old, strict=True)]
        else:
            staged_count = len(staged)
            if base is not None:
                staged = pa.concat_arrays([staged, base])
            for row, sources in self.filled.items():
                if name in sources:
                    place = sources[name]
                    if place is not None and place < 0:
                        place = None if name in lacking[~place] else staged_count + ~place
                    places[row] = place
        return staged.take(pa.array(places, pa.int64()))

    def _holes(self, row: int, lacking: Sequence[frozenset[str]]) -> list[str] | None:
        sources = self.filled.get(row, {})
        holes = [n for n, place in sources.items() if place is None or (place < 0 and n in lacking[~place])]
        return sorted(holes) or None


def _lengths(values: pa.ChunkedArray | pa.Array | None) -> list[int]:
    """The lengths of the values in bytes; 0 for types other than texts and bytes, whose values are short."""
    if values is None:
        return []
    if not (pa.types.is_string(values.type) or pa.types.is_binary(values.type)):
        return [0] * len(values)
    return list(pc.fill_null(pc.binary_length(values), 0).to_pylist())


def walk_changes(staged: pa.Table, key: Sequence[str], columns: Sequence[str]) -> WalkedChanges:
    """Walk staged changes, which are in R1 order and have the column `_old_key` if one of them moves a key."""
    walk = WalkedChanges(staged, key, columns)
    ops = staged["_op"].to_pylist()
    keys = keys_of([staged[name] for name in key])
    masks = staged["_unchanged"].to_pylist()
    moved = "_old_key" in staged.column_names
    old_keys: Sequence[Key | None] = _old_keys(staged, key) if moved else [None] * len(ops)
    lives = _KeyLives(walk, tracked=sorted({name for mask in masks for name in mask or ()}))
    last_truncate = max((row for row, op in enumerate(ops) if op == "truncate"), default=None)
    for row, (op, own, mask) in enumerate(zip(ops, keys, masks, strict=True)):
        old_key = old_keys[row] if op == "update" else None
        if op == "truncate":
            lives.add(row, op)
            if row == last_truncate:
                lives.forget_all()
        elif op == "delete":
            walk.newest[own] = lives.add(row, op)
        elif old_key is not None:
            inherited = {name: lives.place(old_key, name) for name in mask or ()}
            walk.newest[old_key] = lives.add(row, "delete", old=True)
            lives.begin(own, row, inherited)
            walk.newest[own] = lives.add(row, "insert", fills=inherited)
        else:
            if op == "insert":
                lives.begin(own, row, dict.fromkeys(mask or ()))
            fills = {name: lives.place(own, name) for name in mask or ()}
            lives.record_sent(own, row, mask or ())
            walk.newest[own] = lives.add(row, op, fills=fills)
    return walk


def _old_keys(staged: pa.Table, key: Sequence[str]) -> list[Key | None]:
    old_key_structs = staged["_old_key"].combine_chunks()
    tuples = keys_of([field_of(old_key_structs, name) for name in key])
    return [
        key_before if valid else None
        for key_before, valid in zip(tuples, old_key_structs.is_valid().to_pylist(), strict=True)
    ]


@dataclass(slots=True)
class _KeyLives:
    """The present life of each key, with the sources of the values of the `tracked` columns.

    A life that began with an insert has a source for each tracked column. A life that began in the target has one only
    for the columns that were sent since; the others come from the target. After a delete the next life begins with an
    insert.
    """

    walk: WalkedChanges
    tracked: Sequence[str]
    known: dict[Key, dict[str, Place]] = field(default_factory=dict)
    from_target: bool = True

    def add(self, row: int, op: str, *, old: bool = False, fills: Mapping[str, Place] | None = None) -> int:
        """Add one row to the walk and return its number."""
        walk = self.walk
        walk.origin.append(row)
        walk.old.append(old)
        walk.ops.append(op)
        if fills:
            walk.filled[len(walk.ops) - 1] = dict(fills)
        return len(walk.ops) - 1

    def forget_all(self) -> None:
        """Forget all lives at the last truncate: later changes take no values from before it."""
        self.known.clear()
        self.walk.newest.clear()
        self.from_target = False

    def begin(self, key: Key, row: int, inherited: Mapping[str, Place]) -> None:
        """Begin a life with an insert, or with the insert half of a change of the key.

        `inherited` has the sources of the columns that the change does not send; None means that no row has the value.
        """
        self.known[key] = {name: inherited.get(name, row) for name in self.tracked}

    def record_sent(self, key: Key, row: int, mask: Sequence[str]) -> None:
        places = self.known.setdefault(key, {})
        places.update((name, row) for name in self.tracked if name not in mask)

    def place(self, key: Key, name: str) -> Place:
        places = self.known.get(key, {})
        if name in places:
            return places[name]
        if not self.from_target:
            return None
        walk = self.walk
        if key not in walk.base:
            walk.base[key] = len(walk.base)
            walk.base_rows.append(len(walk.ops))  # the next row of the walk is of this key
        return ~walk.base[key]
