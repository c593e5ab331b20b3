"""A PostgreSQL in thirty lines of state: what the stream, a snapshot and a chunk say, and in which order. No Spark.

Transactions write under row locks, commit (the stream has them from then on), and become visible later, which is when
their locks end: so two transactions that write one key never are invisible at the same time, as at a real source. A
chunk is read under a snapshot between two watermarks, of which the high one is staged some time later.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from tests.target.lake import StagedTable
from tests.target.model import Change, Key, Row, apply
from tidemark.formats.manifest import Claim, Sweep
from tidemark.formats.snapshot import Snapshot
from tidemark.lsn import Lsn

KEYS = range(14)
TOASTED = ("body", "note")


@dataclass
class Transaction:
    xid: int
    changes: list[Change]
    keys: set[Key]
    truncates: bool
    commit_lsn: int = 0


@dataclass
class Source:
    """One table (id, n, body, note). `visible` is what a new snapshot sees, `committed` what the stream leads to."""

    rng: random.Random
    table: StagedTable
    visible: dict[Key, Row] = field(default_factory=dict)
    committed: dict[Key, Row] = field(default_factory=dict)
    running: list[Transaction] = field(default_factory=list)  # not visible yet, committed or not
    xids: Iterator[int] = field(default_factory=lambda: itertools.count(700))
    ended: int = 699  # the highest transaction id that is visible, or was given up
    wal: list[Transaction | Claim] = field(default_factory=list)  # since the last batch
    chunks: int = 0
    late: list[Claim] = field(default_factory=list)  # read, and without a high watermark yet
    truncates: bool = True
    plain: bool = False  # no change moves a key, or leaves a value unsent
    columns: tuple[str, ...] | None = None  # what chunks read besides the key, None for all

    def fill(self, count: int) -> None:
        """Rows from before the stream began."""
        for key in self.rng.sample(KEYS, count):
            row = {"id": key, "n": key, **{c: f"{c} of {key}" for c in TOASTED}}
            self.visible[(key,)] = dict(row)
            self.committed[(key,)] = dict(row)

    # --- what applications do -----------------------------------------------------------------------------------------

    def write(self) -> None:
        """A transaction on keys that nobody has locked; it commits at once, and is visible now or later."""
        locked = {key for t in self.running for key in t.keys}
        if any(t.truncates for t in self.running):
            return
        if self.truncates and not self.running and self.rng.random() < 0.04:
            transaction = Transaction(next(self.xids), [Change("truncate")], set(), True)
        else:
            changes = list(self._changes(locked))
            keys = {k for c in changes for k in _keys_of(c)}
            transaction = Transaction(next(self.xids), changes, keys, False)
        if not transaction.changes:
            return
        transaction.commit_lsn = self.table.next_lsn()
        for change in transaction.changes:
            apply(self.committed, ("id",), change)
        self.wal.append(transaction)
        self.running.append(transaction)
        if self.rng.random() < 0.6:
            self.show(transaction)

    def show(self, transaction: Transaction) -> None:
        self.running.remove(transaction)
        for change in transaction.changes:
            apply(self.visible, ("id",), change)
        self.ended = max(self.ended, transaction.xid)

    def show_some(self) -> None:
        for transaction in list(self.running):
            if self.rng.random() < 0.5:
                self.show(transaction)

    def show_all(self) -> None:
        for transaction in list(self.running):
            self.show(transaction)

    def _changes(self, locked: set[Key]) -> Iterator[Change]:
        state = {k: dict(v) for k, v in self.committed.items()}
        for _ in range(self.rng.randint(1, 4)):
            free = [k for k in KEYS if (k,) not in state and (k,) not in locked]
            keys_in_use = [k[0] for k in state if k not in locked]
            weights = {
                "insert": 3 * bool(free),
                "update": 8 * bool(keys_in_use),
                "move": 3 * bool(keys_in_use and free and not self.plain),
            }
            weights |= {"delete": 3 * bool(keys_in_use)}
            if not any(weights.values()):
                return
            op = self.rng.choices(list(weights), list(weights.values()))[0]
            if op == "delete":
                change = Change("delete", {"id": self.rng.choice(keys_in_use), "n": None, "body": None, "note": None})
            elif op == "insert":
                change = Change("insert", {"id": self.rng.choice(free), **self._values(())})
            else:
                old = self.rng.choice(keys_in_use)
                new = old if op == "update" else self.rng.choice(free)
                sends = 1.0 if self.plain else 0.4
                unchanged = tuple(c for c in TOASTED if state[(old,)][c] is not None and self.rng.random() >= sends)
                change = Change(
                    "update", {"id": new, **self._values(unchanged)}, unchanged, {"id": old} if new != old else None
                )
            apply(state, ("id",), change)
            yield change

    def _values(self, unchanged: Sequence[str]) -> Row:
        sent = {"n": self.rng.choice([None, self.rng.randrange(1000)])}
        sent |= {c: self.rng.choice([None, f"{c} {self.rng.randrange(10**6)}"]) for c in TOASTED}
        return {c: None if c in unchanged else v for c, v in sent.items()}

    def rewrite(self, column: str) -> None:
        """Every row gets another value, and the stream says nothing of it, as for ADD COLUMN with a volatile default;
        that waits for whoever writes."""
        self.show_all()
        for rows in (self.visible, self.committed):
            for key, row in rows.items():
                row[column] = 10_000 + key[0]

    # --- what a backfill does -----------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        xmax = self.ended + 1
        in_progress = tuple(sorted(t.xid for t in self.running if t.xid < xmax))
        return Snapshot(min(in_progress, default=xmax), xmax, in_progress)

    def read(self, backfill: str, keys: Sequence[int]) -> None:
        """A chunk of these keys; its high watermark comes now, or is late."""
        self.chunks += 1
        low = self.table.next_lsn()
        rows = [self.visible[(k,)] for k in keys if (k,) in self.visible]
        if self.columns is not None:
            rows = [{name: row[name] if name in ("id", *self.columns) else None for name in row} for row in rows]
        claim = self.table.stage_chunk(backfill, f"1-{self.chunks}", rows, snapshot=str(self.snapshot()), low=low)
        if self.columns is not None:
            numbers = tuple(c.attnum for c in self.table.schema.columns if c.name in self.columns)
            claim = replace(claim, columns=numbers)
        if self.rng.random() < 0.5:
            self.mark(claim)
        else:
            self.late.append(claim)

    def mark(self, claim: Claim) -> None:
        self.wal.append(replace(claim, watermark_lsn=Lsn(self.table.next_lsn())))

    def mark_late(self) -> None:
        for claim in self.late:
            self.mark(claim)
        self.late.clear()

    # --- what a drain does --------------------------------------------------------------------------------------------

    def stage(self, sweeps: Sequence[Sweep] = ()) -> None:
        """One batch of everything since the last."""
        transactions = [entry for entry in self.wal if isinstance(entry, Transaction)]
        claims = tuple(entry for entry in self.wal if isinstance(entry, Claim))
        self.wal.clear()
        if transactions or claims:
            committed = [(t.commit_lsn, t.xid, t.changes) for t in transactions]
            self.table.changes_a_file = (None, 2, 5)[len(self.table.batches) % 3]
            self.table.stage_committed(committed, claims, tuple(sweeps))


def _keys_of(change: Change) -> set[Key]:
    keys = {(change.row["id"],)} if change.row else set()
    return keys | ({(change.old_key["id"],)} if change.old_key else set())
