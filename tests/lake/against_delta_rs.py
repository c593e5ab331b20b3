"""Random histories, written by delta-rs and asked for by `tidemark.lake` without Spark, against the twenty lines.

Runs in an environment that has delta-rs; tests/spark/test_other_readers.py makes it.
"""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake

from tests.lake.told import Told, state_at
from tidemark.lake import Lake, Past, Position
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
    return asked + 2


def _compare(seed: int, past: Past, told: Told, position: Position) -> None:
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
