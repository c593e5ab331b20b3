"""Random histories, written by delta-rs and asked for by `tidemark.lake` without Spark, against the twenty lines.

Runs in an environment that has delta-rs; tests/target/test_other_readers.py makes it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake

from tests.lake.told import NOON, Told, state_at
from tidemark.errors import MomentBeforeHistory, MomentNotApplied, TidemarkError
from tidemark.lake import Lake, Position, TableAtPosition, TableInLake
from tidemark.lake.moments import Moment
from tidemark.lsn import Lsn

TYPES = {
    "_generation": pa.int32(),
    "_commit_lsn": pa.int64(),
    "_ordinal": pa.int64(),
    "_xid": pa.int64(),
    "_committed_at": pa.timestamp("us", "UTC"),
    "_op": pa.string(),
    "id": pa.int64(),
    "n": pa.int32(),
    "body": pa.string(),
    "_unchanged": pa.list_(pa.string()),
    "_text": pa.map_(pa.string(), pa.string()),
}
NAMES = ("id", "n", "body")


def play(folder: str, seeds: int) -> int:
    """How many moments were asked for; every one was what it should be."""
    return sum(_one(folder, seed) for seed in range(seeds))


def _one(folder: str, seed: int) -> int:
    rng = random.Random(seed)
    told = Told(rng, ("id",) if seed % 2 else ())
    while len(told.history) < 20:
        told.happen(10)
    _write(folder, f"t{seed}", told)
    table = Lake(f"{folder}/shop").table(f"s.t{seed}")
    end = Position(told.generation, Lsn(told.lsn + 1))
    first = Position(told.history[0]["_generation"], Lsn(told.history[0]["_commit_lsn"]))
    asked = 0
    for change in rng.sample(told.history, 6):
        position = Position(change["_generation"], Lsn(change["_commit_lsn"] + rng.choice([0, 1])))
        if first < position <= end:
            _compare(seed, table.as_of(position), told, position)
            asked += 1
    later = [change for change in told.history if change["_committed_at"] > told.history[9]["_committed_at"]]
    generation, lsn = min(((change["_generation"], change["_commit_lsn"]) for change in later), default=(0, 0))
    if first < Position(generation, Lsn(lsn)):
        past = table.as_of(told.history[9]["_committed_at"])
        assert past.position == Position(generation, Lsn(lsn)), seed
        _compare(seed, past, told, past.position)
    _compare(seed, table.newest(), told, end)
    return asked + 2 + (_ranges(seed, table, told) if told.key else 0)


def _ranges(seed: int, table: TableInLake, told: Told) -> int:
    """The states that are valid at each moment are the rows of that moment."""
    ranges = table.validity().to_pylist()
    places = sorted({(change["_generation"], change["_commit_lsn"]) for change in told.history})
    for generation, lsn in [place for at, begin in places for place in ((at, begin), (at, begin + 1))]:
        valid = [
            row
            for row in ranges
            if (row["_generation"], row["_commit_lsn"]) < (generation, lsn)
            and (row["is_current"] or (row["_until_generation"], row["_until_lsn"]) >= (generation, lsn))
        ]
        rows = Counter(tuple(row[name] for name in NAMES) for row in valid)
        assert rows == state_at(told.history, told.key, generation, lsn), (seed, generation, lsn)
    assert all((row["valid_to"] is None) == row["is_current"] for row in ranges)
    _deleted(seed, table, told)
    return len(places)


def _deleted(seed: int, table: TableInLake, told: Told) -> None:
    """Each key that any transaction left a row of has its last one, and the time of the transaction that left none."""
    times = {(change["_generation"], change["_commit_lsn"]): change["_committed_at"] for change in told.history}
    key = [NAMES.index(name) for name in told.key]
    last: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for generation, lsn in sorted(times):
        left = {tuple(row[at] for at in key): row for row in state_at(told.history, told.key, generation, lsn + 1)}
        gone = {of: (*row[:-1], times[generation, lsn]) for of, row in last.items() if of not in left and not row[-1]}
        last |= gone | {of: (*row, None) for of, row in left.items()}
    rows = [tuple(row[name] for name in (*NAMES, "_deleted_at")) for row in table.with_deleted().to_pylist()]
    assert Counter(rows) == Counter(last.values()), seed


def as_others_take_it(past: TableAtPosition) -> list[int]:
    """How many rows DuckDB and Polars see in what a moment had."""
    import duckdb
    import polars

    rows = past.rows()
    (counted,) = duckdb.from_arrow(rows).aggregate("count(*)").fetchall()
    frame = polars.from_arrow(rows)
    assert isinstance(frame, polars.DataFrame)
    return [rows.num_rows, counted[0], frame.height]


def _compare(seed: int, past: TableAtPosition, told: Told, position: Position) -> None:
    rows = Counter(tuple(row[name] for name in NAMES) for row in past.rows().to_pylist())
    assert rows == state_at(told.history, told.key, position.generation, position.lsn), (seed, position)


def _write(folder: str, name: str, told: Told) -> None:
    """Both Delta tables, with the position that the merge would leave in them."""
    at = Transaction(f"tidemark:shop:{told.generation}:s.{name}:history", told.lsn + 1)
    written = pa.Table.from_pylist(told.history, schema=pa.schema(list(TYPES.items())))
    write_deltalake(
        f"{folder}/shop/history/s/{name}", written, commit_properties=CommitProperties(app_transactions=[at])
    )
    fields = [pa.field(column, TYPES[column], nullable=column not in told.key) for column in NAMES]
    write_deltalake(f"{folder}/shop/current/s/{name}", pa.schema(fields).empty_table())


def columns_and_positions(folder: str) -> str:
    """What columns mean in older rows, values that nobody knew, and what a merge noted."""
    types = [pa.field(name, of) for name, of in TYPES.items()]
    older = {"tidemark.older": json.dumps({"generation": 1, "commit_lsn": 20, "default": "it's \\ open"})}
    types[list(TYPES).index("body")] = pa.field("body", pa.string(), metadata=older)
    types.append(pa.field("more", pa.string()))
    changes = [
        (10, "insert", 1, None, None),
        (30, "insert", 2, "x", None),
        (40, "update", 2, None, ["body"]),
        (50, "update", 1, None, ["text"]),
        (60, "read", 3, None, None),
    ]
    history = [
        {
            **dict.fromkeys(TYPES),
            "_generation": 1,
            "_commit_lsn": lsn,
            "_ordinal": 0,
            "_op": op,
            "id": key,
            "body": body,
        }
        | {"_unchanged": unchanged, "_committed_at": NOON + timedelta(seconds=lsn)}
        for lsn, op, key, body, unchanged in changes
    ]
    at = Transaction("tidemark:shop:1:s.t:history", 61)
    write_deltalake(
        f"{folder}/shop/history/s/t",
        pa.Table.from_pylist(history, schema=pa.schema(types)),
        commit_properties=CommitProperties(app_transactions=[at]),
    )
    fields = [pa.field(column, TYPES[column], nullable=column != "id") for column in NAMES]
    write_deltalake(f"{folder}/shop/current/s/t", pa.schema(fields).empty_table())
    table = Lake(f"{folder}/shop").table("s.t")

    def said(past: TableAtPosition) -> dict[int, tuple[str | None, list[str] | None]]:
        return {row["id"]: (row["body"], row["_holes"]) for row in past.rows().to_pylist()}

    assert "begins at 0/B of generation 1" in _refused(MomentBeforeHistory, table, 10)
    position = Position(1, Lsn(15))
    assert said(table.as_of(position)) == {1: (None, None)}, "the column was not there yet"
    assert said(table.as_of(35)) == {1: ("it's \\ open", None), 2: ("x", None)}
    assert said(table.as_of(45)) == {1: ("it's \\ open", None), 2: (None, ["body"])}
    newest = table.newest()
    assert newest.position == Position(1, Lsn(61))
    assert newest.exact_from is None, "nothing was noted"
    assert said(newest)[1] == (None, None), "a name that is no column's says nothing"
    columns = tuple(replace(column, may_be_renamed=column.name == "body") for column in newest.reading.shape.columns)
    newest.reading.shape = replace(newest.reading.shape, columns=columns)
    assert said(newest)[1] == (None, ["body"]), "the column may have been called so"

    noted = [("s.t", 55, False), ("s.t", 58, True), ("s.t", 70, True), ("s.other", 90, True)]
    write_deltalake(
        f"{folder}/shop/_positions",
        pa.table(
            {
                "table_name": [name for name, _, _ in noted],
                "generation": pa.array([1] * len(noted), pa.int32()),
                "lsn": pa.array([lsn for _, lsn, _ in noted], pa.int64()),
                "committed_at": pa.array(
                    [NOON + timedelta(seconds=lsn) for _, lsn, _ in noted], TYPES["_committed_at"]
                ),
                "exact": [exact for _, _, exact in noted],
                "history_version": pa.nulls(len(noted), pa.int64()),
                "current_version": pa.nulls(len(noted), pa.int64()),
                "source_name": [name for name, _, _ in noted],
            }
        ),
    )
    level = table.newest()
    assert (level.position, level.exact_from) == (Position(1, Lsn(70)), Position(1, Lsn(61)))
    assert level.is_exact
    assert not table.as_of(60).is_exact
    assert as_others_take_it(level) == [3, 3, 3]
    assert table.as_of(NOON + timedelta(seconds=65)).position == Position(1, Lsn(70))
    assert table.as_of(NOON + timedelta(seconds=45)).position == Position(1, Lsn(50))
    # Another table is merged so far, this one is not.
    assert "applied up to 0/46 of generation 1" in _refused(MomentNotApplied, table, NOON + timedelta(seconds=70))
    return "so it is"


def _refused(error: type[TidemarkError], table: TableInLake, moment: Moment) -> str:
    try:
        table.as_of(moment)
    except error as refused:
        return str(refused)
    return "it was not refused"
