"""Walks the changes of the keys that moved or lack values, one change after the other, as PostgreSQL made them.

    changes of some keys, in R1 order ── walk_changes ──► WalkedChanges ── rows(base) ──► a row each, values filled in
                                              │                    ▲
                                              └── base: keys whose rows of current the unchanged values come from

The walk keeps row numbers, never values. Values stay in Arrow's arrays and are taken out by row number at the end.

The result equals that of `spark.fold`: `split_identity`, `fill_unchanged` and `newest_per_key`. Per key and in R1
order, the windows of `spark.fold` are such a walk. The newest value since the life's insert is the last one in the
walk. A change of the key hands over the old life's values at that point. Above the plan's last truncate no value comes
from the target. tests/target/test_few_changes.py compares the two with each other and with the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.names import CHANGE_COLUMNS, MARK_COLUMNS, ROW_HOLES
from tidemark.target.driver.arrow_columns import Key, field_of, keys_of

# Where a value that was not sent comes from: the number of a staged row that has it; ~n for the nth key of `base`;
# None if it is known nowhere.
Place = int | None


@dataclass(slots=True)
class WalkedChanges:
    """Per row, of which a change of the key is two, `origin` is the number of the staged change, and `old` whether the
    row is the delete of the old key. `newest` is the last row of every key above the last truncate. `base` numbers the
    keys whose values come from current, and `base_rows` is a row of each."""

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
        """The key's columns of some rows."""
        chosen = pa.array(rows, pa.int64())
        return [pa.chunked_array([self._values(name, None, ()).take(chosen)]) for name in self.key]

    def unchanged(self) -> list[str]:
        """The columns that occur in a mask."""
        return sorted({name for places in self.filled.values() for name in places})

    def bytes_filled(self, base: Mapping[str, pa.Array]) -> int:
        """How many bytes `rows` would fill in for values that were not sent: a text of a megabyte, in each of a
        thousand changes that left it as it was, is a gigabyte."""
        total = 0
        for name in self.unchanged():
            of_staged, of_base = _lengths(self.staged[name]), _lengths(base.get(name))
            places = (sources.get(name) for sources in self.filled.values())
            total += sum(of_staged[place] if place >= 0 else of_base[~place] for place in places if place is not None)
        return total

    def rows(self, base: Mapping[str, pa.Array], lacking: Sequence[frozenset[str]]) -> pa.Table:
        """Every change, one row each: metadata, columns, marks, ROW_HOLES. `base` has, per column of `unchanged`, a
        value for each key of `self.base`; `lacking` names the columns whose value is known nowhere, for each of them
        too."""
        arrays = {name: self._metadata(name) for name in CHANGE_COLUMNS}
        arrays["_op"] = pa.array(self.ops, pa.string())
        for name in self.columns:
            arrays[name] = self._values(name, base.get(name), lacking)
        for name in MARK_COLUMNS:
            arrays[name] = self._metadata(name, of_old=False)
        arrays[ROW_HOLES] = pa.array([self._holes(row, lacking) for row in range(len(self.ops))], pa.list_(pa.string()))
        return pa.table(arrays)

    def _metadata(self, name: str, *, of_old: bool = True) -> pa.Array:
        rows = self.origin if of_old else self._of_new
        return self.staged[name].combine_chunks().take(pa.array(rows, pa.int64()))

    @property
    def _of_new(self) -> list[int | None]:
        """The staged row of every row but the delete of a changed key, which has the old key and nothing else."""
        return [None if old else row for row, old in zip(self.origin, self.old, strict=True)]

    def _values(self, name: str, base: pa.Array | None, lacking: Sequence[frozenset[str]]) -> pa.Array:
        staged = self.staged[name].combine_chunks()
        places: list[int | None] = self._of_new
        if name in self.key and any(self.old):
            before = field_of(self.staged["_old_key"].combine_chunks(), name)
            behind = len(staged)
            staged = pa.concat_arrays([staged, before])
            places = [behind + row if old else row for row, old in zip(self.origin, self.old, strict=True)]
        else:
            behind = len(staged)
            if base is not None:
                staged = pa.concat_arrays([staged, base])
            for row, sources in self.filled.items():
                if name in sources:
                    place = sources[name]
                    if place is not None and place < 0:
                        place = None if name in lacking[~place] else behind + ~place
                    places[row] = place
        return staged.take(pa.array(places, pa.int64()))

    def _holes(self, row: int, lacking: Sequence[frozenset[str]]) -> list[str] | None:
        sources = self.filled.get(row, {})
        holes = [n for n, place in sources.items() if place is None or (place < 0 and n in lacking[~place])]
        return sorted(holes) or None


def _lengths(values: pa.ChunkedArray | pa.Array | None) -> list[int]:
    """In bytes, of texts and bytes; of all else, which is short, nothing."""
    if values is None:
        return []
    if not (pa.types.is_string(values.type) or pa.types.is_binary(values.type)):
        return [0] * len(values)
    return list(pc.fill_null(pc.binary_length(values), 0).to_pylist())


def walk_changes(staged: pa.Table, key: Sequence[str], columns: Sequence[str]) -> WalkedChanges:
    """The changes are in R1 order; they have `_old_key` if one of them moves a key."""
    walk = WalkedChanges(staged, key, columns)
    ops = staged["_op"].to_pylist()
    keys = keys_of([staged[name] for name in key])
    masks = staged["_unchanged"].to_pylist()
    moved = "_old_key" in staged.column_names
    before: Sequence[Key | None] = _keys_before(staged, key) if moved else [None] * len(ops)
    lives = _Lives(walk, tracked=sorted({name for mask in masks for name in mask or ()}))
    last_truncate = max((row for row, op in enumerate(ops) if op == "truncate"), default=None)
    for row, (op, own, mask) in enumerate(zip(ops, keys, masks, strict=True)):
        old = before[row] if op == "update" else None
        if op == "truncate":
            lives.add(row, op)
            if row == last_truncate:
                lives.begin_anew()
        elif op == "delete":
            walk.newest[own] = lives.add(row, op)
        elif old is not None:
            handed = {name: lives.place(old, name) for name in mask or ()}
            walk.newest[old] = lives.add(row, "delete", old=True)
            lives.begin(own, row, handed)
            walk.newest[own] = lives.add(row, "insert", fills=handed)
        else:
            if op == "insert":
                lives.begin(own, row, dict.fromkeys(mask or ()))
            fills = {name: lives.place(own, name) for name in mask or ()}
            lives.go_on(own, row, mask or ())
            walk.newest[own] = lives.add(row, op, fills=fills)
    return walk


def _keys_before(staged: pa.Table, key: Sequence[str]) -> list[Key | None]:
    before = staged["_old_key"].combine_chunks()
    tuples = keys_of([field_of(before, name) for name in key])
    return [
        key_before if valid else None for key_before, valid in zip(tuples, before.is_valid().to_pylist(), strict=True)
    ]


@dataclass(slots=True)
class _Lives:
    """Per key what its present life knows of the columns that some mask names: of all where it began with an insert,
    else of those that were sent since; the others it has from the target. What follows a delete begins with an
    insert."""

    walk: WalkedChanges
    tracked: Sequence[str]
    known: dict[Key, dict[str, Place]] = field(default_factory=dict)
    from_target: bool = True

    def add(self, row: int, op: str, *, old: bool = False, fills: Mapping[str, Place] | None = None) -> int:
        """One more row; its number."""
        walk = self.walk
        walk.origin.append(row)
        walk.old.append(old)
        walk.ops.append(op)
        if fills:
            walk.filled[len(walk.ops) - 1] = dict(fills)
        return len(walk.ops) - 1

    def begin_anew(self) -> None:
        """Behind the last truncate nothing comes from before it."""
        self.known.clear()
        self.walk.newest.clear()
        self.from_target = False

    def begin(self, key: Key, row: int, handed: Mapping[str, Place]) -> None:
        """An insert, or the insert of a change of the key: what it does not bring was handed over, or is nowhere."""
        self.known[key] = {name: handed.get(name, row) for name in self.tracked}

    def go_on(self, key: Key, row: int, mask: Sequence[str]) -> None:
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
            walk.base_rows.append(len(walk.ops))  # the row that comes next is of this key
        return ~walk.base[key]
