"""Draws the state machines of a table's life, as docs/table-life.md has them. A test compares them."""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.schema.table_life import INITIAL, TRANSITIONS, Machine


def drawing(machine: Machine) -> str:
    """The machine as a mermaid state diagram. What leaves a state as it is, is not drawn."""
    return "\n".join(["stateDiagram-v2", *(f"    {line}" for line in _lines(machine))])


def _lines(machine: Machine) -> Iterator[str]:
    yield f"[*] --> {INITIAL[machine]}"
    moves: dict[tuple[str, str], list[str]] = {}
    for event, pairs in TRANSITIONS[machine].items():
        for before, to in pairs.items():
            if before != to:
                moves.setdefault((before, to), []).append(event)
    for (before, to), events in moves.items():
        yield f"{before} --> {to}: {', '.join(events)}"
