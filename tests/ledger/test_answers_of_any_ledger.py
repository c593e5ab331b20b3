"""What a run asks of the ledger is answered from a few rows; the answers are those that reading all of it gives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.manifests import schema_of
from tidemark.ledger.captured import schema_versions
from tidemark.ledger.connection import Ledger
from tidemark.ledger.observations import overview
from tidemark.ledger.staged import applied_positions, batches
from tidemark.ledger.staged.snapshot_evidence import NeededEvidence
from tidemark.lsn import Lsn

TABLES = ("s.a", "s.b", "s.c", "s.d")
STATES = ("merging", "merging", "parked", "deferred")


@dataclass
class Row:
    """A batch as far as it touches one table."""

    generation: int
    table: str
    start: int
    end: int
    max_xid: int | None
    version: int | None
    claimed: tuple[str, ...]


@dataclass
class World:
    """A ledger made up at random: the chain of each generation ends in `staged`, `positions` maps (generation, table)
    to history, current and where the table was begun anew."""

    rows: list[Row] = field(default_factory=list)
    staged: dict[int, int] = field(default_factory=dict)
    positions: dict[tuple[int, str], tuple[int | None, int | None, int | None]] = field(default_factory=dict)

    def applied(self, generation: int, table: str) -> int:
        history, current, _ = self.positions.get((generation, table), (None, None, None))
        return 0 if history is None or current is None else min(history, current)

    def unapplied(self) -> list[Row]:
        return [row for row in self.rows if row.end > self.applied(row.generation, row.table)]

    def of(self, generation: int, table: str) -> list[Row]:
        return [row for row in self.rows if (row.generation, row.table) == (generation, table)]


def made_up(seed: int) -> World:
    chosen = random.Random(seed)
    world = World()
    versions = dict.fromkeys(TABLES, 1)
    for generation in range(1, chosen.randint(1, 3) + 1):
        start = 100
        for _ in range(chosen.randint(0, 12)):
            end = start + chosen.randint(1, 40)
            for table in chosen.sample(TABLES, chosen.randint(0, 4)):
                versions[table] += chosen.random() < 0.2
                changed = chosen.random() < 0.8
                claimed = tuple(chosen.sample(("one", "two"), chosen.randint(0 if changed else 1, 2)))
                xid = chosen.randint(1, 50) if changed else None
                version = versions[table] if changed else None
                world.rows.append(Row(generation, table, start, end, xid, version, claimed))
            start = end
        world.staged[generation] = start
        for table in TABLES:
            if chosen.random() < 0.7:
                ends = [100, start, *(row.end for row in world.of(generation, table)), chosen.randint(100, start)]
                history, current = (chosen.choice([None, *ends]) for _ in range(2))
                world.positions[generation, table] = history, current, chosen.choice([None, None, *ends])
    return world


def write(book: Ledger, world: World) -> None:
    book.execute("TRUNCATE tidemark.pipelines CASCADE")
    book.execute(
        "TRUNCATE tidemark.batches, tidemark.batch_tables, tidemark.positions, tidemark.schema_versions CASCADE"
    )
    book.execute("INSERT INTO tidemark.pipelines (pipeline) VALUES ('shop')")
    for table, state in zip(TABLES, STATES, strict=True):
        error = Jsonb({"kind": "Broken", "move": "FIX_TARGET", "message": "broken"}) if state == "parked" else None
        book.execute(
            """INSERT INTO tidemark.tables (pipeline, "table", state, error) VALUES ('shop', %s, %s, %s)""",
            (table, state, error),
        )
        for version in range(1, 20):
            book.execute(
                'INSERT INTO tidemark.schema_versions (pipeline, "table", version, definition, generation, start_lsn) '
                "VALUES ('shop', %s, %s, %s, 1, '0/1')",
                (table, version, Jsonb(schema_of(table, version).to_json())),
            )
    for generation, staged in world.staged.items():
        book.execute(
            "INSERT INTO tidemark.generations (pipeline, number, system_identifier, timeline, slot, start_lsn, "
            "staged_lsn, opened_by, reason) VALUES ('shop', %s, '7', 1, 'shop', '0/64', %s, 'test', 'a test')",
            (generation, Lsn(staged)),
        )
    for generation, start, end in sorted({(row.generation, row.start, row.end) for row in world.rows}):
        book.execute(
            "INSERT INTO tidemark.batches VALUES ('shop', %s, %s, %s, 'a', 'run', 'm', now(), clock_timestamp(), "
            "1, 1, 1, 0)",
            (generation, Lsn(start), Lsn(end)),
        )
    for row in world.rows:
        file = {"path": "p", "rows": 1, "bytes": 1, "sha256": "", "schema_version": row.version}
        book.execute(
            'INSERT INTO tidemark.batch_tables (pipeline, generation, "table", start_lsn, end_lsn, files, counts, '
            "converted, unchanged, moved, changes, bytes, max_xid, claims) VALUES "
            "('shop', %s, %s, %s, %s, %s, '{}', '{}', 0, 0, 7, 11, %s, %s)",
            (
                row.generation,
                row.table,
                Lsn(row.start),
                Lsn(row.end),
                Jsonb([] if row.version is None else [file]),
                row.max_xid,
                Jsonb([claim_of(backfill) for backfill in row.claimed]),
            ),
        )
    for (generation, table), (history, current, begun) in world.positions.items():
        book.execute(
            'INSERT INTO tidemark.positions (pipeline, generation, "table", history_lsn, current_lsn, begun_lsn) '
            "VALUES ('shop', %s, %s, %s, %s, %s)",
            (generation, table, *(None if lsn is None else Lsn(lsn) for lsn in (history, current, begun))),
        )


def claim_of(backfill: str) -> dict[str, Any]:
    texts = {"backfill": backfill, "chunk": "1-1", "attempt": "a", "watermark_at": "", "snapshot": "1:1:"}
    return {**texts, "watermark_lsn": "0/1", "low_lsn": "0/1", "consistent_point": None, "rows": 1, "files": []}


@pytest.fixture
def worlds(book: Ledger) -> Iterator[World]:
    def each() -> Iterator[World]:
        for seed in range(25):
            world = made_up(seed)
            write(book, world)
            yield world

    return each()


def keys(rows: list[Any]) -> list[tuple[int, str, int]]:
    return sorted((row.generation, row.table, int(row.end_lsn if hasattr(row, "end_lsn") else row.end)) for row in rows)


def test_every_answer_is_that_of_reading_the_whole_ledger(book: Ledger, worlds: Iterator[World]) -> None:
    for number, world in enumerate(worlds):
        unapplied = world.unapplied()
        assert keys(batches.unapplied(book)) == keys(unapplied), number
        due = {"s.a", "s.c"}
        assert keys(batches.unapplied(book, names=due)) == keys([r for r in unapplied if r.table in due]), number
        assert batches.unapplied_counts(book, TABLES) == {
            table: count for table in TABLES if (count := sum(row.table == table for row in unapplied))
        }, number
        newest = max(world.staged)
        applied = {
            table: min(
                [row.start for row in unapplied if (row.generation, row.table) == (newest, table)], default=staged
            )
            for staged in [world.staged[newest]]
            for table in TABLES
        }
        assert applied_positions.applied(book) == applied, number
        assert applied_positions.confirmable(book) == min(applied["s.a"], applied["s.b"], world.staged[newest]), number
        status = overview.read(book)
        assert status is not None
        for table in status.tables:
            mine = [row for row in unapplied if row.table == table.table]
            assert (table.waiting_batches, table.waiting_changes) == (len(mine), 7 * len(mine)), number
            assert (table.waiting_since is None) == (not mine), number


def test_what_a_plan_and_its_evidence_stand_on_is_that_of_the_whole_ledger(
    book: Ledger, worlds: Iterator[World]
) -> None:
    for number, world in enumerate(worlds):
        chosen = random.Random(number)
        for generation in world.staged:
            start = chosen.randint(100, world.staged[generation])
            ends = batches.previous_ends(book, generation, dict.fromkeys(TABLES, Lsn(start)))
            for table in TABLES:
                mine = world.of(generation, table)
                begun = (world.positions.get((generation, table)) or (0, 0, None))[2] or 0
                below = [row.end for row in mine if begun < row.end <= start]
                assert ends[table] == max(below, default=None), (number, table)
                xmin, point = chosen.choice([None, 5, 30]), chosen.choice([None, Lsn(130)])
                swept = chosen.sample(("one", "two"), chosen.randint(0, 2))
                evidence = batches.evidence(
                    book, generation, table, Lsn(start), NeededEvidence(xmin, point, set(swept))
                )
                assert keys(evidence) == keys(
                    [
                        row
                        for row in mine
                        if row.end <= start
                        and (
                            (row.max_xid is not None and xmin is not None and row.max_xid >= xmin)
                            or (row.max_xid is not None and point is not None and row.end > point)
                            or set(swept) & set(row.claimed)
                        )
                    ]
                ), (number, table)
        for table in TABLES:
            merged = schema_versions.merged(book, table)
            versions = [
                row.version
                for row in world.rows
                if row.table == table and row.version is not None and row.end <= world.applied(row.generation, table)
            ]
            assert (None if merged is None else merged.version) == max(versions, default=None), (number, table)
