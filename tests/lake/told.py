"""A list of what happened to a table -> what it was at every moment: the judge of `tidemark.lake`, in twenty lines.

`Told` also gives the rows of `history` that a merge writes for it, so that random lists need no Spark; that the merge
writes such rows is what tests/target and every scenario hold.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

Row = dict[str, Any]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
REMOVALS = ("delete", "sweep")


def state_at(history: list[Row], key: tuple[str, ...], generation: int, lsn: int) -> Counter[tuple[Any, ...]]:
    """The rows at a position, each as often as it is there: changes are applied one by one, in R1 order."""
    columns = [name for name in history[0] if not name.startswith("_")] if history else []
    by_key: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    copies: Counter[tuple[Any, ...]] = Counter()
    order = ("_generation", "_commit_lsn", "_ordinal")
    for change in sorted(history, key=lambda c: (*(c[name] for name in order), c["_op"] not in REMOVALS)):
        if (change["_generation"], change["_commit_lsn"]) >= (generation, lsn):
            break
        row = tuple(change[name] for name in columns)
        if change["_op"] == "truncate":
            by_key.clear()
            copies.clear()
        elif change["_op"] in REMOVALS:
            by_key.pop(tuple(change[name] for name in key), None)
            copies[row] -= 1
        else:
            by_key[tuple(change[name] for name in key)] = row
            copies[row] += 1
    return Counter(by_key.values()) if key else +copies


@dataclass
class Told:
    """A table (id, n, body) whose changes are made up; without a key it is a multiset."""

    rng: random.Random
    key: tuple[str, ...]
    history: list[Row] = field(default_factory=list)
    there: list[tuple[Any, ...]] = field(default_factory=list)
    generation: int = 1
    lsn: int = 100
    clock: datetime = NOON

    def happen(self, transactions: int) -> None:
        for _ in range(transactions):
            self.lsn += self.rng.choice([1, 8, 1000])
            if self.rng.random() < 0.05:
                self.generation, self.lsn = self.generation + 1, self.rng.choice([50, 100_000])
            # Commit times do not rise with LSNs.
            self.clock += timedelta(seconds=self.rng.choice([-1, 0, 0, 1, 60]))
            for ordinal in range(self.rng.randint(1, 5)):
                self._change(ordinal)

    def _change(self, ordinal: int) -> None:
        op = self.rng.choices(
            ["insert", "update", "move", "delete", "truncate", "read", "sweep"], [8, 8, 3, 4, 0.4, 2, 1]
        )[0]
        if op in ("update", "move", "delete", "sweep") and not self.there:
            return
        if op == "truncate":
            self.there.clear()
            self._tell(ordinal, op, (None, None, None))
            return
        new = (self.rng.randrange(6), self.rng.choice([None, 1, 2]), self.rng.choice([None, "a", "b"]))
        old = self.rng.choice(self.there) if self.there else None
        if self.key and op in ("insert", "read", "move"):
            same = next((row for row in self.there if row[0] == new[0]), None)
            if op == "read" and same is not None:
                self.there.remove(same)
            elif same is not None and (op != "move" or same != old):
                return  # a key that moves to itself stands for -0.0, which becomes 0.0
        if op == "update" and self.key:
            assert old is not None
            new = (old[0], *new[1:])
            self.there.remove(old)
        elif op in ("delete", "sweep", "move", "update"):
            assert old is not None
            self.there.remove(old)
            gone = (old[0], None, None) if self.key else old
            self._tell(ordinal, "sweep" if op == "sweep" else "delete", gone)
        if op not in ("delete", "sweep"):
            self.there.append(new)
            self._tell(ordinal, {"move": "insert"}.get(op, op if self.key or op == "read" else "insert"), new)

    def _tell(self, ordinal: int, op: str, row: tuple[Any, ...]) -> None:
        self.history.append(
            {
                "_generation": self.generation,
                "_commit_lsn": self.lsn,
                "_ordinal": ordinal,
                "_xid": None,
                "_committed_at": self.clock,
                "_op": op,
                **dict(zip(("id", "n", "body"), row, strict=True)),
                "_unchanged": None,
                "_text": None,
            }
        )
