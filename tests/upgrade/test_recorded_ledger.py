"""Every migration on the ledger that a day of work left, one after the other; and that version's files."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import psycopg
import pytest

from tests.upgrade.older_version import RECORDED, columns_of, load_rows, migrations_up_to, tables_of
from tidemark.formats.generation_file import GenerationFile
from tidemark.formats.manifest import BatchManifest
from tidemark.formats.plan import MergePlan
from tidemark.formats.result import PlanResult
from tidemark.ledger import backfills, batches, chunks, generations, migrations, positions, tables
from tidemark.ledger.connection import connect, open_ledger
from tidemark.ledger.migrations import migrate
from tidemark.lsn import Lsn

PIPELINE = "upgraded"
RECORDED_AT = 11
LATER = [number for number, _ in migrations._scripts() if number > RECORDED_AT]


@pytest.fixture
def recorded(empty_ledger_database: str) -> str:
    with migrations_up_to(RECORDED_AT):
        migrate(empty_ledger_database)
    with psycopg.connect(empty_ledger_database, autocommit=True) as ledger:
        load_rows(ledger)
    return empty_ledger_database


Rows = dict[str, list[dict[str, Any]]]


def rows_of(ledger: psycopg.Connection[Any]) -> Rows:
    return {
        table: [row for (row,) in ledger.execute(f'SELECT to_jsonb(t) FROM tidemark."{table}" t')]
        for table in tables_of(ledger)
    }


def counted(rows: list[dict[str, Any]], columns: list[str]) -> Counter[str]:
    return Counter(json.dumps([row[column] for column in columns], sort_keys=True) for row in rows)


def test_no_migration_changes_a_row_but_for_columns_that_it_adds_or_drops(recorded: str) -> None:
    with connect(recorded) as ledger:
        before = rows_of(ledger)
        held = {table for table, rows in before.items() if rows}
        assert {"batches", "batch_tables", "tables", "positions", "plans", "backfills", "ranges", "chunks"} <= held
        for number in LATER:
            with migrations_up_to(number):
                assert migrate(recorded).after == number
            after = rows_of(ledger)
            for table, rows in before.items():
                kept = [column for column in columns_of(ledger, table) if not rows or column in rows[0]]
                assert counted(after[table], kept) == counted(rows, kept), f"migration {number} changes {table}"
            before = after


def test_what_the_day_left_stands_in_the_ledger_as_it_did(recorded: str) -> None:
    migrate(recorded)
    with open_ledger(recorded, PIPELINE) as ledger:
        generation = generations.required(ledger)
        registered = batches.after(ledger, generation.number, Lsn(0))
        assert registered[-1].end_lsn == generation.staged_lsn
        rows = {row.table: row for row in tables.all_of(ledger)}
        assert {table: row.life.merge for table, row in rows.items()} == {
            "shop.orders": "merging",
            "shop.lines": "merging",
            "shop.customers": "merging",
            "shop.visits": "merging",
            "shop.parked": "parked",
            "shop.widened": "parked",
        }
        assert {table for table, row in rows.items() if row.life.needs_backfill} == {
            "shop.lines",
            "shop.customers",
            "shop.parked",
        }
        assert rows["shop.parked"].error is not None
        applied = positions.applied(ledger)
        assert applied["shop.orders"] == registered[-2].end_lsn < generation.staged_lsn
        unfinished = {backfill.table: backfill for backfill in backfills.all_open(ledger)}
        assert set(unfinished) == {"shop.lines", "shop.customers"}
        read = chunks.of_backfill(ledger, unfinished["shop.lines"].backfill)
        assert sum(chunk.rows for chunk in read) == 201
        assert chunks.of_backfill(ledger, unfinished["shop.customers"].backfill) == []


@pytest.mark.parametrize(("marked_s", "is_newer"), [(-1, False), (0, False), (1, True), (None, False)])
def test_marks_are_older_or_newer_than_open_backfills_as_they_were(
    recorded: str, marked_s: int | None, *, is_newer: bool
) -> None:
    """`marked_s`: seconds between the opening of the backfills and the marks of their tables."""
    with connect(recorded) as ledger:
        ledger.execute(
            "UPDATE tidemark.tables t SET marked_at = opened_at + make_interval(secs => %s) FROM tidemark.backfills b"
            """ WHERE b.pipeline = t.pipeline AND b."table" = t."table" AND b.state = 'open'""",
            (marked_s,),
        )
    migrate(recorded)
    with open_ledger(recorded, PIPELINE) as ledger:
        marks = {row.table: row.marks for row in tables.all_of(ledger)}
        opened = backfills.all_open(ledger)
        assert len(opened) == 2
        assert {marks[backfill.table] > backfill.marks for backfill in opened} == {is_newer}


def test_the_files_of_the_older_version_are_read() -> None:
    manifest = BatchManifest.from_json((RECORDED / "manifest.json").read_text())
    assert {claim.purpose for table in manifest.tables for claim in table.claims} == {"fill"}
    assert MergePlan.from_json((RECORDED / "plan.json").read_text()).tables
    assert PlanResult.from_json((RECORDED / "result.json").read_text()).tables
    assert GenerationFile.from_json((RECORDED / "generation.json").read_text()).number == 1
