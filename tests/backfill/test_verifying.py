"""What a verify takes: which tables, which parts of them, in which order."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest

from tests.support.pipeline import Pipeline
from tests.support.runs import a_run
from tidemark.backfill.verifying import VerifyRequest, neighbours_joined, plan_verify
from tidemark.config import TableRule
from tidemark.errors import BackfillTablesUnknown, CaptureNotBegun, RowFilterInvalid, VerifyRefused
from tidemark.formats.manifest import KeyPart
from tidemark.ledger.captured import joins
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.reading import backfills, proofs
from tidemark.ledger.reading.backfills import Backfill
from tidemark.ledger.reading.proofs import Part

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HALF = Fraction(1, 2)


def many_parts(captured: Pipeline, *statements: str) -> None:
    """A table of 100 rows that was seen empty, and that is cut into parts of about 10 rows."""
    captured.config = dataclasses.replace(
        captured.config, bounds=captured.config.bounds.model_copy(update={"chunk_rows": 10})
    )
    captured.execute("CREATE TABLE orders (id int PRIMARY KEY, v text)", *statements)
    captured.capture()
    captured.execute("INSERT INTO orders SELECT i, 'v' || i FROM generate_series(1, 100) AS i", "ANALYZE orders")


def plan(captured: Pipeline, run_id: str = "v1", now: datetime = NOON, **request: Any) -> list[Backfill]:
    captured.run_id = run_id
    return plan_verify(
        a_run(captured.config, source=captured.source, ledger=captured.ledger, run_id=run_id, now=lambda: now),
        request=VerifyRequest(**request),
    )


def read_of(captured: Pipeline, verify: Backfill) -> set[tuple[Any, Any]]:
    return {(key_range.lower, key_range.upper) for key_range in captured.ranges(verify)}


def applied(captured: Pipeline, verify: Backfill, now: datetime) -> None:
    """As if its parts were proven now."""
    captured.read()
    with open_ledger(captured.ledger, captured.config.pipeline) as book:
        cut = proofs.cut_of(book, verify.table)
        assert cut is not None
        mine = [p.part for p in cut.parts if verify.parts is None or p.bounds in verify.parts]
        book.execute("UPDATE tidemark.parts SET proven_at = %s, proven_lsn = '0/1' WHERE part = ANY(%s)", (now, mine))
        book.execute("UPDATE tidemark.backfills SET state = 'applied' WHERE backfill = %s", (verify.backfill,))


def test_each_night_takes_the_share_that_was_proven_longest_ago(captured: Pipeline) -> None:
    many_parts(captured)
    night = NOON
    seen: list[KeyPart] = []
    counts: list[int] = []
    for number in range(5):
        (verify,) = plan(captured, f"v{number}", night, share=Fraction(1, 5))
        assert (verify.purpose, verify.sweeps, verify.whole_table) == ("verify", True, False)
        assert verify.parts is not None
        assert {(part.lower, part.upper) for part in verify.parts} == read_of(captured, verify)
        counts.append(len(verify.parts))
        seen += verify.parts
        applied(captured, verify, night)
        night += timedelta(days=1)
    assert counts == [2] * 5
    assert len(set(seen)) == 10
    assert [part.lower is None for part in seen].count(True) == 1
    assert [b.parts for b in plan(captured, "v5", night, share=Fraction(1, 5))] == [tuple(seen[:2])]


def test_neighbours_among_the_parts_are_read_as_one_range() -> None:
    def part(number: int) -> Part:
        lower = None if number == 1 else (str(number - 1),)
        return Part(number, KeyPart(lower, (str(number),)), 10, None, None, None)

    def read(numbers: list[int], most: int) -> list[tuple[Any, Any]]:
        joined = neighbours_joined([part(number) for number in numbers], most)
        return [(r.lower and int(r.lower[0]), r.upper and int(r.upper[0])) for r in joined]

    assert read([3, 1, 2, 4], 8) == [(None, 1), (1, 2), (2, 3), (3, 4)]
    assert read([1, 2, 3, 4, 5], 2) == [(None, 3), (3, 5)]
    # Part 3 is proven already: nothing of it may be read, or swept, as if it had been chosen.
    assert read([1, 2, 4, 5], 1) == [(None, 2), (3, 5)]
    assert read([], 4) == []


def test_what_was_proven_lately_is_not_due_unless_it_is_named(captured: Pipeline) -> None:
    many_parts(captured)
    (verify,) = plan(captured, share=Fraction(1))
    assert verify.parts is None
    applied(captured, verify, NOON)
    later = NOON + timedelta(hours=20)
    assert plan(captured, "v2", later, share=HALF) == []
    assert len(plan(captured, "v3", later, share=HALF, tables=("public.orders",))) == 1
    assert len(plan(captured, "v4", NOON + timedelta(hours=37), share=HALF)) == 1


def test_a_key_that_spark_orders_otherwise_is_read_as_a_whole(captured: Pipeline) -> None:
    """The bag has no key, char(8) is compared without its blanks; text is ordered by bytes here."""
    many_parts(
        captured,
        "CREATE TABLE worded (word char(8) PRIMARY KEY)",
        'CREATE TABLE named (name text COLLATE "C" PRIMARY KEY, at timestamptz)',
        "CREATE TABLE bag (what text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
    )
    for table in ("worded", "named", "bag"):
        captured.execute(f"INSERT INTO {table} SELECT i FROM generate_series(1, 100) AS i", f"ANALYZE {table}")
    # The stored types are known from the stream or a backfill.
    captured.plan("fill", tables=["public.named", "public.worded"])
    captured.read()
    captured.ledger_query("UPDATE tidemark.backfills SET state = 'applied' RETURNING 1")
    verifies = {v.table.partition(".")[2]: v for v in plan(captured, share=Fraction(1, 1000))}
    parts = {name: None if v.parts is None else len(v.parts) for name, v in verifies.items()}
    assert parts.pop("orders") == 1
    assert parts.pop("named") == 1
    # Of those that are read as a whole one comes first.
    assert list(parts.values()) == [None]
    assert parts.keys() <= {"bag", "worded"}
    named = plan(captured, "v2", tables=("public.bag", "public.worded"))
    assert [(v.table, v.parts, v.sweeps) for v in named] == [
        ("public.bag", None, False),
        ("public.worded", None, True),
    ]


@pytest.mark.parametrize(
    ("mark", "reason"),
    [
        (
            "needs_backfill = true, backfill_kind = 'rejoined', backfill_reason = 'it is said'",
            "it needs a backfill: it is said",
        ),
        ('state = \'parked\', error = \'{"kind": "a", "move": "BUG", "message": "b"}\'', "it is parked"),
        ("join_horizon = NULL", "has not seen it join"),
    ],
)
def test_a_table_that_may_differ_is_left_out_or_refused(captured: Pipeline, mark: str, reason: str) -> None:
    many_parts(captured)
    captured.ledger_query(f"UPDATE tidemark.tables SET {mark} RETURNING 1")
    assert plan(captured) == []
    with pytest.raises(VerifyRefused, match=reason):
        plan(captured, "v2", tables=("public.orders",))


def test_what_cannot_be_proven_is_refused_with_the_reason(captured: Pipeline) -> None:
    named = dataclasses.replace(captured.config, tables=(*captured.config.tables, TableRule("public.log")))
    captured.config = named
    bag = "CREATE TABLE bag (what text)", "ALTER TABLE bag REPLICA IDENTITY FULL"
    many_parts(captured, "CREATE TABLE log (what text)", *bag)
    with pytest.raises(VerifyRefused, match="no current"):
        plan(captured, tables=("public.log",))
    with pytest.raises(VerifyRefused, match="a row filter is that of tables"):
        plan(captured, row_filter="id > 1")
    with pytest.raises(VerifyRefused, match="without a row filter"):
        plan(captured, tables=("public.bag",), row_filter="what = 'x'")
    with pytest.raises(RowFilterInvalid):
        plan(captured, tables=("public.orders",), row_filter="nothing > 1")
    with pytest.raises(BackfillTablesUnknown, match="did you mean"):
        plan(captured, tables=("public.order",))
    captured.plan("fill", tables=["public.orders"])
    with pytest.raises(VerifyRefused, match="a backfill of it is open"):
        plan(captured, tables=("public.orders",))


def test_without_a_capture_there_is_nothing_to_verify(captured: Pipeline) -> None:
    with pytest.raises(CaptureNotBegun, match="no generation is open"):
        plan(captured)


def test_planning_again_in_the_same_run_changes_nothing_and_another_run_begins_anew(captured: Pipeline) -> None:
    many_parts(captured)
    first = plan(captured, share=HALF)
    assert plan(captured, share=HALF) == first
    (second,) = plan(captured, "v2", share=HALF)
    assert second.parts == first[0].parts
    assert captured.again(first[0]).state_reason == "run v2 begins anew"


def test_a_filter_proves_no_part(captured: Pipeline) -> None:
    many_parts(captured)
    (verify,) = plan(captured, tables=("public.orders",), row_filter="id > 40")
    assert (verify.sweeps, verify.whole_table, verify.parts) == (False, False, None)
    captured.read()
    assert {row["id"] for row in captured.rows(verify)} == set(range(41, 101))


def test_a_table_that_has_doubled_is_cut_anew_and_keeps_its_oldest_proof(captured: Pipeline) -> None:
    many_parts(captured)
    (verify,) = plan(captured, share=Fraction(1))
    applied(captured, verify, NOON)
    captured.execute("INSERT INTO orders SELECT i FROM generate_series(101, 250) AS i", "ANALYZE orders")
    (again,) = plan(captured, "v2", NOON + timedelta(days=60), share=Fraction(1, 25))
    assert again.parts is not None
    assert len(again.parts) == 1
    with open_ledger(captured.ledger, captured.config.pipeline) as book:
        cut = proofs.cut_of(book, "public.orders")
        verified = proofs.verified(book)["public.orders"]
    assert cut is not None
    assert {part.proven_at for part in cut.parts} == {NOON}
    assert (verified.parts, verified.proven, verified.through_at) == (25, 25, NOON)


def test_an_open_verify_is_no_backfill(captured: Pipeline) -> None:
    """It hinders none, and keeps no mark of holes away."""
    many_parts(captured)
    (verify,) = plan(captured)
    (fill,) = captured.plan("fill", tables=["public.orders"])
    assert (fill.purpose, captured.again(verify).state) == ("fill", "open")
    with open_ledger(captured.ledger, captured.config.pipeline) as book:
        assert backfills.open_of(book, "public.orders") == captured.again(fill)
        joins.leave(book, "public.orders")
        assert {b.state for b in (captured.again(fill), captured.again(verify))} == {"closed"}
