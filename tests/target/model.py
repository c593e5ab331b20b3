"""The judge: a list of changes, as the stream gives them, applied one by one to a dictionary. No Spark in here."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Change:
    """`row` is what was sent: NULL where `unchanged` says that it was not. `old_key` where the key changed,
    `text` where a value does not fit."""

    op: str
    row: Row = field(default_factory=dict)
    unchanged: tuple[str, ...] = ()
    old_key: Row | None = None
    old: Row | None = None
    text: dict[str, str] | None = None


def apply(state: dict[Key, Row], key: Sequence[str], change: Change) -> list[tuple[str, Row]]:
    """Change the state; returns what history gets for it: operation and full row, a delete's key alone."""
    if change.op == "truncate":
        state.clear()
        return [("truncate", {})]
    new_key = tuple(change.row[k] for k in key)
    if change.op == "delete":
        state.pop(new_key, None)
        return [("delete", {k: change.row[k] for k in key})]
    old_key = new_key if change.old_key is None else tuple(change.old_key[k] for k in key)
    before = state.pop(old_key, {}) if change.op == "update" else {}
    state[new_key] = {c: before.get(c) if c in change.unchanged else v for c, v in change.row.items()}
    if old_key == new_key:
        return [(change.op, state[new_key])]
    return [("delete", dict(zip(key, old_key, strict=True))), ("insert", state[new_key])]


def random_changes(
    rng: random.Random, state: dict[Key, Row], count: int, *, truncates: bool = True
) -> Iterator[Change]:
    """Changes of a table (id, n, body, note) that a source could make from this state on; body and note are TOASTed.

    Few keys, so that they are deleted, used again, moved and swapped through a third one all the time.
    """
    state = {k: dict(v) for k, v in state.items()}
    for _ in range(count):
        free = [k for k in range(9) if (k,) not in state]
        keys_in_use = [k[0] for k in state]
        weights = {"insert": 4 * bool(free), "update": 8 * bool(keys_in_use), "move": 5 * bool(keys_in_use and free)}
        weights |= {"delete": 2 * bool(keys_in_use), "truncate": 0.25 * truncates}
        op = rng.choices(list(weights), list(weights.values()))[0]
        if op == "truncate":
            change = Change("truncate")
        elif op == "delete":
            change = Change("delete", {"id": rng.choice(keys_in_use), "n": None, "body": None, "note": None})
        elif op == "insert":
            change = Change("insert", {"id": rng.choice(free), **_values(rng, ())})
        else:
            unchanged = tuple(c for c in ("body", "note") if rng.random() < 0.6)
            old = rng.choice(keys_in_use)
            new = old if op == "update" else rng.choice(free)
            # A value that was never stored out of line is sent again, even where it did not change: NULL is one.
            unchanged = tuple(c for c in unchanged if state[(old,)][c] is not None)
            row = {"id": new, **_values(rng, unchanged)}
            change = Change("update", row, unchanged, {"id": old} if op == "move" else None)
        apply(state, ("id",), change)
        yield change


def _values(rng: random.Random, unchanged: tuple[str, ...]) -> Row:
    sent = {"n": rng.choice([None, rng.randrange(1000)])}
    sent |= {c: rng.choice([None, f"{c} {rng.randrange(10**6)}"]) for c in ("body", "note")}
    return {c: None if c in unchanged else v for c, v in sent.items()}
