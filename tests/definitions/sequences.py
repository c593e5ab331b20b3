"""Sequences of kinds of change, and the SQL that they come to.

A sequence is small and plain, so that it can be cut down: what its SQL is follows from it alone. Between two steps lies
a gap, and so there is one before the first step and one behind the last; in a gap rows may change, and a chunk may be
read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from tests.definitions import column_kinds, partition_kinds, table_kinds, type_kinds
from tests.definitions.altered_table import BASES, AlteredTable
from tests.definitions.statements import Alone, Between, Kind, Transaction

KINDS: Final[dict[str, Kind]] = {
    kind.__name__: kind for kind in (*column_kinds.KINDS, *type_kinds.KINDS, *table_kinds.KINDS, *partition_kinds.KINDS)
}
OF_PARTITIONS: Final = frozenset(kind.__name__ for kind in partition_kinds.KINDS)
OF_LISTED: Final = frozenset(name for name in KINDS if name.startswith("taken_from_the_publication"))
LONGEST: Final = 6


@dataclass(frozen=True, slots=True)
class Sequence:
    """`changes` and `chunks` are the gaps with changes of rows, and with a chunk. `together`: all of it is one
    transaction, but for the chunks, which lie before or behind it."""

    base: str
    kinds: tuple[str, ...]
    changes: frozenset[int] = frozenset()
    chunks: frozenset[int] = frozenset()
    together: bool = False
    seed: int = 0

    def __str__(self) -> str:
        parts = []
        for gap in range(len(self.kinds) + 1):
            parts += ["rows"] * (gap in self.changes) + ["chunk"] * (gap in self.chunks)
            parts += [*self.kinds[gap : gap + 1]]
        return f"{self.base}{' in one transaction' * self.together}, seed {self.seed}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Script:
    """`pieces` are runs of statements, autocommit; a chunk is read between two of them. `played` are the kinds that had
    something to change."""

    pieces: tuple[tuple[str, ...], ...]
    played: tuple[str, ...]


def begun(sequence: Sequence, schema: str) -> tuple[AlteredTable, list[str]]:
    """The table of a sequence, and what creates it and fills it, in two steps: the second one is streamed."""
    table = AlteredTable(schema, sequence.base, Random(f"{sequence.seed} {sequence.base}"), sequence.together)
    created = table.create()
    rows = "; ".join(table.insert() for _ in range(4))
    return table, [created, rows]


def script(sequence: Sequence, table: AlteredTable) -> Script:
    """What is played from there on; the table's state is moved along."""
    pieces: list[list[str]] = [[]]
    played: list[str] = []
    inside = False  # of the one transaction

    def say(*statements: str) -> None:
        nonlocal inside
        if sequence.together and not inside:
            pieces[-1].append("BEGIN")
            inside = True
        pieces[-1].extend(statements)

    def end() -> None:
        nonlocal inside
        if inside:
            pieces[-1].append("COMMIT")
            inside = False

    def change() -> None:
        say(*table.changes())

    def gap(number: int) -> None:
        is_last = number == len(sequence.kinds)
        if sequence.together and is_last:
            if number in sequence.changes:
                change()
            end()
        if number in sequence.chunks and not inside:
            pieces.append([])
        if number in sequence.changes and not (sequence.together and is_last):
            change()

    for number, name in enumerate(sequence.kinds):
        gap(number)
        table.random = Random(f"{sequence.seed} {number} {name}")
        was_played = False
        for statement in KINDS[name](table):
            if isinstance(statement, Between):
                if sequence.changes:
                    change()
                continue
            was_played = True
            if isinstance(statement, Alone):
                end()
                pieces[-1].append(statement.statement)
            elif isinstance(statement, Transaction):
                say(*statement.statements) if sequence.together else say("BEGIN", *statement.statements, "COMMIT")
            else:
                say(statement)
        if was_played:
            played.append(name)
    gap(len(sequence.kinds))
    end()
    return Script(tuple(map(tuple, pieces)), tuple(played))


# --- which ones -------------------------------------------------------------------------------------------------------


def fits(base: str, *kinds: str) -> bool:
    """Whether a base can have these kinds at all."""
    return (base == "partitioned" or OF_PARTITIONS.isdisjoint(kinds)) and (
        base == "listed" or OF_LISTED.isdisjoint(kinds)
    )


def ways(base: str, kinds: tuple[str, ...], seed: int) -> Iterator[Sequence]:
    """With and without changes of rows, in several transactions and in one; each with a chunk in one of its gaps, or
    in none."""
    gaps = frozenset(range(len(kinds) + 1))
    random = Random(f"{base} {kinds} {seed}")
    for together in (False, True):
        for changes in (frozenset[int](), gaps):
            places = [0, len(kinds)] if together else list(gaps)
            chunks = frozenset(random.sample(places, 1)) if random.random() < 0.4 else frozenset[int]()
            yield Sequence(base, kinds, changes, chunks, together, seed)


def of_length(length: int, seed: int = 0) -> Iterator[Sequence]:
    """All of length one or two. A base is played where a kind needs it; what fits to each is played on one of them by
    turns, and alone on each."""
    names = list(KINDS)
    if length == 1:
        for base in BASES:
            for name in names:
                if fits(base, name):
                    yield from ways(base, (name,), seed)
        return
    for at, one in enumerate(names):
        for also, other in enumerate(names):
            fitting = [base for base in BASES if fits(base, one, other)]
            if fitting:
                base = fitting[(at + also + seed) % len(fitting)]
                yield from ways(base, (one, other), seed)


def pairs_that_play() -> Iterator[Sequence]:
    """The sequences of length two in which both kinds change something. The others are the same as sequences of length
    one."""
    return (one for one in of_length(2) if len(script(one, begun(one, "s")[0]).played) == 2)


def at_random(seed: int) -> Sequence:
    """One of length three to six."""
    random = Random(seed)
    base = random.choice(BASES)
    names = [name for name in KINDS if fits(base, name)]
    if base == "partitioned":
        names += [name for name in KINDS if name in OF_PARTITIONS] * 3
    kinds = tuple(random.choice(names) for _ in range(random.randint(3, LONGEST)))
    together = random.random() < 0.3
    gaps = range(len(kinds) + 1)
    changes = frozenset(gap for gap in gaps if random.random() < 0.6)
    places = [0, len(kinds)] if together else list(gaps)
    chunks = frozenset(gap for gap in places if random.random() < 0.2)
    return Sequence(base, kinds, changes, chunks, together, seed)


def smaller(sequence: Sequence) -> Iterator[Sequence]:
    """The sequence with one thing less, the largest first."""
    for at in range(len(sequence.kinds)):
        kinds = (*sequence.kinds[:at], *sequence.kinds[at + 1 :])
        if kinds:
            changes = frozenset(gap - (gap > at) for gap in sequence.changes)
            chunks = frozenset(gap - (gap > at) for gap in sequence.chunks)
            yield replace(sequence, kinds=kinds, changes=changes, chunks=chunks)
    for gap in sorted(sequence.chunks):
        yield replace(sequence, chunks=sequence.chunks - {gap})
    for gap in sorted(sequence.changes):
        yield replace(sequence, changes=sequence.changes - {gap})
    if sequence.together:
        yield replace(sequence, together=False)
