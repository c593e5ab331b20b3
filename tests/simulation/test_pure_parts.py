"""Decoder, visibility and fold, without PostgreSQL and Spark: thousands of seeds in a minute.

    a source in thirty lines ──► pgoutput bytes ──► Decoder, in blocks cut anywhere ──┬── change_walk, batch by batch
       (transactions that are committed                                               └── the rule of R7 over chunks
        and not visible, chunks, ids beyond the epoch, columns that swap names)

What the changes come to, told one by one to a dictionary, judges both. `make simulation` plays fifty times as many
seeds as of the others."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.simulation import chunk_model
from tests.support import pgoutput as wire
from tests.target.lake import StagedTable
from tests.target.model import Change, Key, Row, apply
from tests.target.source import KEYS, TOASTED, Source, Transaction
from tidemark.formats.manifest import Claim, Sweep
from tidemark.lsn import Lsn
from tidemark.names import ROW_HOLES
from tidemark.pgoutput.decoder import Decoder
from tidemark.pgoutput.messages import RelationMessage
from tidemark.schema.table import TableSchema
from tidemark.target.driver.change_walk import walk_changes

FIRST = int(os.environ.get("TIDEMARK_SIMULATION_FIRST", "1"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("TIDEMARK_SIMULATION_SEEDS", "100")))
AT_ONCE = 50  # in one test: pytest costs more than a seed

OID = 77
COLUMNS = ("id", "n", "body", "note")
EPOCH = 2**32
BACKFILL = "b1"
FLOWS = {"insert", "update", "delete", "truncate", "moved", "unchanged", "chunk rows"}


@dataclass
class Tape:
    """What `Source` writes, in order; chunks keep their rows."""

    lsns: Iterator[int] = field(default_factory=lambda: itertools.count(100, 10))
    rows: dict[str, list[Row]] = field(default_factory=dict)

    def next_lsn(self) -> int:
        return next(self.lsns)

    def stage_chunk(self, backfill: str, chunk: str, rows: list[Row], *, snapshot: str, low: int) -> Claim:
        self.rows[chunk] = [_as_text(row) for row in rows]
        return Claim(backfill, chunk, "attempt", Lsn(0), "", Lsn(low), snapshot, None, len(rows), ())


def _as_text(row: Row) -> Row:
    return {name: None if value is None else str(value) for name, value in row.items()}


@dataclass
class Seed:
    """One life of a table: `wal` is all that happened, `base` what it had before."""

    random: Random
    tape: Tape = field(default_factory=Tape)
    names: tuple[str, ...] = COLUMNS
    versions: list[tuple[str, ...]] = field(default_factory=list)
    wal: list[Transaction | Claim] = field(default_factory=list)

    def __post_init__(self) -> None:
        first = EPOCH - self.random.randrange(60)
        self.source = Source(self.random, cast(StagedTable, self.tape))
        self.source.xids, self.source.ended = itertools.count(first), first - 1
        self.source.fill(self.random.choice([0, 5, 10]))
        self.base = {(str(row["id"]),): _as_text(row) for row in self.source.committed.values()}
        self.opened = self.source.snapshot()

    def play(self) -> None:
        source = self.source
        cuts = sorted(self.random.sample(range(1, len(KEYS)), 3))
        left = [list(KEYS)[a:b] for a, b in zip([0, *cuts], [*cuts, len(KEYS)], strict=True)]
        for _ in range(self.random.randint(10, 40)):
            match self.random.choice(["write"] * 6 + ["show", "read", "mark"]):
                case "write":
                    source.write()
                case "show":
                    source.show_some()
                case "read" if left:
                    source.read(BACKFILL, left.pop(0))
                case "mark":
                    source.mark_late()
        source.show_all()
        while left:
            source.read(BACKFILL, left.pop(0))
        source.mark_late()
        self.wal = sorted(source.wal, key=_at)

    # --- as bytes, and back -----------------------------------------------------------------------------------------

    def messages(self) -> Iterator[bytes]:
        """The stream; columns have swapped their names from some transactions on."""
        yield from ()
        is_told = False
        for transaction in self.wal:
            if isinstance(transaction, Claim):
                continue
            yield wire.begin(transaction.commit_lsn, xid=transaction.xid % EPOCH)
            for change in transaction.changes:
                if self.random.random() < 0.05:
                    self.names = (*self.names[:2], self.names[3], self.names[2])
                    is_told = False
                if not is_told:
                    yield wire.relation(OID, self.names, key=["id"])
                    is_told = True
                yield _message(change)
            yield wire.commit(transaction.commit_lsn)

    def decoded(self) -> list[pa.Table]:
        """The staged rows of each block, in the names of the first version."""
        messages = list(self.messages())
        decoder = Decoder(self._schema_for, 1, next_xid=EPOCH + 1000)
        cuts = sorted(self.random.sample(range(len(messages) + 1), min(len(messages), self.random.randrange(6))))
        blocks = []
        for start, stop in itertools.pairwise([0, *cuts, len(messages)]):
            for block in decoder.decode(messages[start:stop]).changes:
                blocks.append(self._in_first_names(block.rows, block.schema))
        return blocks

    def _schema_for(self, message: RelationMessage) -> TableSchema:
        names = tuple(column.name for column in message.columns)
        if names not in self.versions:
            self.versions.append(names)
        return wire.text_schema(message, version=1 + self.versions.index(names))

    def _in_first_names(self, rows: pa.RecordBatch, schema: TableSchema) -> pa.Table:
        """A column is its place."""
        first = dict(zip((c.name for c in schema.columns), COLUMNS, strict=True))
        table = pa.table(rows).rename_columns([first.get(name, name) for name in rows.schema.names])
        masks = [None if m is None else [first[name] for name in m] for m in table["_unchanged"].to_pylist()]
        at = table.schema.get_field_index("_unchanged")
        return table.set_column(at, "_unchanged", pa.array(masks, pa.list_(pa.string())))


def _at(entry: Transaction | Claim) -> int:
    return int(entry.watermark_lsn) if isinstance(entry, Claim) else entry.commit_lsn


def _message(change: Change) -> bytes:
    row = _as_text(change.row)
    values: list[wire.Value] = [wire.UNCHANGED if name in change.unchanged else row.get(name) for name in COLUMNS]
    match change.op:
        case "insert":
            return wire.insert(OID, values)
        case "update":
            before = None if change.old_key is None else [str(change.old_key["id"]), None, None, None]
            return wire.update(OID, values, key=before)
        case "delete":
            return wire.delete(OID, key=[row["id"], None, None, None])
        case _:
            return wire.truncate(OID)


# --- what the stages make of it --------------------------------------------------------------------------------------


def folded(state: dict[Key, Row], staged: pa.Table) -> list[tuple[str, Row]]:
    """Change the state by a batch, as the driver does; what history gets."""
    in_order = staged.sort_by([("_commit_lsn", "ascending"), ("_ordinal", "ascending")])
    walk = walk_changes(in_order, ["id"], COLUMNS)
    bases = [state.get(key, {}) for key in walk.base]
    base = {name: pa.array([row.get(name) for row in bases], pa.string()) for name in walk.unchanged()}
    rows = walk.rows(base, [frozenset() if row else frozenset(COLUMNS) for row in bases]).to_pylist()
    assert not any(row[ROW_HOLES] for row in rows)
    if "truncate" in walk.ops:
        state.clear()
    for key, number in walk.newest.items():
        state.pop(key, None)
        if walk.ops[number] != "delete":
            state[key] = {name: rows[number][name] for name in COLUMNS}
    return [(row["_op"], {name: row[name] for name in COLUMNS}) for row in rows]


def seen(seed: Seed, staged: pa.Table) -> dict[Key, Row]:
    """The rule of R7 over chunks that were read beside the changes, on a target that has none of the rows."""
    facts = staged.select(["_commit_lsn", "_ordinal", "_xid", "_op", "_unchanged", "_old_key"]).to_pylist()
    changes = [
        chunk_model.Change(
            1, fact["_commit_lsn"], fact["_ordinal"], fact["_xid"], fact["_op"], row, tuple(fact["_unchanged"] or ()),
            fact["_old_key"], None,
        )
        for fact, row in zip(facts, staged.select(COLUMNS).to_pylist(), strict=True)
    ]  # fmt: skip
    changes.sort(key=lambda change: (change.commit_lsn, change.ordinal))
    chunks = [chunk_model.Chunk(e, 1, seed.tape.rows[e.chunk]) for e in seed.wal if isinstance(e, Claim)]
    sweep = Sweep(BACKFILL, str(seed.opened), len(chunks))
    sweeps = [chunk_model.Swept(sweep, max(chunk.at for chunk in chunks), None)]
    return chunk_model.fold(["id"], {}, changes, chunks, sweeps)


def _differing(rows: dict[Key, Row], expected: dict[Key, Row]) -> list[Key]:
    """Keys whose rows differ. A key that moved behind the reader and left large values out has holes: nobody knows
    what they were, and no other column may be one."""
    return [
        key
        for key in rows.keys() | expected.keys()
        if key not in rows
        or key not in expected
        or any(v != expected[key][c] and not (v == chunk_model.HOLE and c in TOASTED) for c, v in rows[key].items())
    ]


@pytest.mark.parametrize("first", SEEDS[::AT_ONCE])
def test_what_was_decoded_comes_to_what_the_source_has(first: int) -> None:
    flowed: Counter[str] = Counter()
    numbers = range(first, min(first + AT_ONCE, SEEDS.stop))
    for number in numbers:
        flowed += _play(number)
    if len(numbers) == AT_ONCE:
        assert {*flowed} == FLOWS, FLOWS - {*flowed}


def _play(number: int) -> Counter[str]:
    """Play one seed; what flowed in it."""
    seed = Seed(Random(number))
    seed.play()
    expected = {(str(key),): _as_text(row) for (key,), row in seed.source.committed.items()}
    told: list[tuple[str, Row]] = []
    judge = dict(seed.base)
    for transaction in seed.wal:
        if isinstance(transaction, Transaction):
            for change in transaction.changes:
                text = replace(change, row=_as_text(change.row), old_key=change.old_key and _as_text(change.old_key))
                told += [(op, {c: row.get(c) for c in COLUMNS}) for op, row in apply(judge, ("id",), text)]
    assert judge == expected, f"seed {number}: the judge itself"
    blocks = seed.decoded()
    state, history = dict(seed.base), cast(list[tuple[str, Any]], [])
    for block in blocks:
        history += folded(state, block)
    assert history == told, f"seed {number}"
    assert state == expected, f"seed {number}"
    if blocks:
        staged = pa.concat_tables(
            block.drop_columns(["_old"]) if "_old" in block.column_names else block for block in blocks
        )
        assert _differing(seen(seed, staged), expected) == [], f"seed {number}"
        xids = {t.xid for t in seed.wal if isinstance(t, Transaction)}
        assert set(staged["_xid"].to_pylist()) == xids, f"seed {number}"
    return _flowed(seed)


def _flowed(seed: Seed) -> Counter[str]:
    flowed: Counter[str] = Counter()
    for transaction in seed.wal:
        for change in transaction.changes if isinstance(transaction, Transaction) else ():
            flowed[change.op] += 1
            flowed["moved"] += change.old_key is not None
            flowed["unchanged"] += bool(change.unchanged)
    flowed["chunk rows"] += sum(map(len, seed.tape.rows.values()))
    return +flowed
