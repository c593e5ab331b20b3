"""Driver and Spark in turns on one table: what one way wrote, the other reads, values at every edge of their types."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.merge_ways import leave_to_spark
from tests.support.thorough import thorough
from tests.target.conftest import Ways
from tests.target.lake import Lake, StagedTable, table_schema
from tests.target.model import Change, Row
from tidemark.schema.table import Column
from tidemark.target.driver import small_files
from tidemark.target.merge_choice import Way

KEY: dict[str, list[Any]] = {
    "a.b": ["", " ", "a", "a ", "A", "é", "e\u0301", "😀", "\u200b"],
    "when": [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1582, 10, 10, 1, 2, 3, 4, tzinfo=UTC),
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ],
    "amount": [Decimal("0E-10"), Decimal("-1E-10"), Decimal("9999999999999999999999999999.9999999999")],
    "small": [-32768, 0, 32767],
    "day": [date(1, 1, 1), date(1582, 10, 10), date(9999, 12, 31)],
    "raw": [b"", b"\x00", b"\x00\x00", b"\xff"],
}
TARGETS = {
    "a.b": "string",
    "when": "timestamp",
    "f": "double",
    "amount": "decimal(38,10)",
    "body": "string",
    "g": "float",
    "small": "smallint",
    "z": "timestamp_ntz",
    "day": "date",
    "m": "map<string,string>",
    "big": "decimal(20,3)",
    "raw": "binary",
    "blob": "binary",
    "xs": "array<double>",
    "ok": "boolean",
}
REST: dict[str, list[Any]] = {
    "f": [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, None],
    "g": [0.0, -0.0, math.nan, math.inf, 1.401298464324817e-45, None],
    "body": ["", "x" * 3000, "\u0001", "NULL", None],
    "z": [datetime(1, 1, 1), datetime(1582, 10, 10), datetime(9999, 12, 31, 23, 59, 59, 999999), None],
    "m": [[], [("", None)], [("k", ""), ("l", "😀")], None],
    "big": [Decimal("0.000"), Decimal("-99999999999999999.999"), None],
    "blob": [b"", b"\x00" * 3000, None],
    "xs": [[], [None], [-0.0, math.nan], None],
    "ok": [True, False, None],
    "late": ["", "late", None],
}
TOASTED = ("body", "blob", "big", "late")


def drawn(rng: random.Random, keys: list[Row], columns: list[str], count: int) -> Iterator[Change]:
    for _ in range(count):
        key, other = rng.choice(keys), rng.choice(keys)
        op = rng.choices(["insert", "update", "move", "delete", "truncate"], [4, 8, 4, 3, 0.15])[0]
        nothing = dict.fromkeys(columns)
        if op == "truncate":
            yield Change("truncate", nothing)
        elif op == "delete":
            yield Change("delete", {**nothing, **key})
        else:
            sent = {name: rng.choice(REST[name]) for name in columns if name in REST}
            unchanged: tuple[str, ...] = ()
            if op != "insert":
                unchanged = tuple(name for name in TOASTED if name in columns and rng.random() < 0.5)
                sent |= dict.fromkeys(unchanged)
            text = {"big": "NaN"} if "big" not in unchanged and rng.random() < 0.1 else None
            if text:
                sent["big"] = None
            moved = op == "move"
            change = "insert" if op == "insert" else "update"
            yield Change(change, {**nothing, **key, **sent}, unchanged, other if moved else None, text=text)


def _as_texts(lake: Lake, table: StagedTable, what: str) -> list[str]:
    """Texts, since NaN equals nothing and -0.0 is 0.0."""
    return [repr(sorted(row.items())) for row in lake.stored(what, table)]


@pytest.mark.parametrize("way", ["driver"], indirect=True)
@pytest.mark.parametrize("seed", thorough(0, 1, 2, 3))
def test_turns_come_to_what_spark_alone_says(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, ways: Ways, seed: int
) -> None:
    monkeypatch.setattr(
        small_files, "MIN_SMALL_FILES", 1
    )  # each merge of the driver writes anew what an earlier one wrote
    rng = random.Random(seed)
    schema = table_schema("t", TARGETS, tuple(sorted(KEY)))
    spark = Lake(lake.spark, lake.root.parent / "spark")
    mine, sparks = lake.table(schema), spark.table(schema)
    keys = [{name: rng.choice(values) for name, values in KEY.items()} for _ in range(9)]
    keys += [{**keys[0], name: rng.choice(values)} for name, values in KEY.items()]
    merged = 0
    expected_ways = []
    for step in range(4):
        for _ in range(rng.randint(1, 2)):
            names = [c.name for c in mine.schema.columns]
            listed = list(drawn(rng, keys, names, rng.randint(1, 25)))
            cuts = [listed[n : n + 4] for n in range(0, len(listed), 4)]
            mine.stage(*cuts)
            sparks.stage(*cuts)
            if step == 2 and "late" not in names:
                added = list(mine.schema.columns)
                added.insert(2, Column("late", "string", 25, -1, "string"))
                schema = replace(mine.schema, version=2, columns=tuple(added))
                mine.schema = sparks.schema = schema
        by_driver = (step + seed) % 2 == 0
        expected_ways += [by_driver, False]
        with monkeypatch.context() as patched:
            if not by_driver:
                leave_to_spark(patched)
            (one,) = lake.applied(mine.planned(merged))
        with monkeypatch.context() as patched:
            leave_to_spark(patched)
            (two,) = spark.applied(sparks.planned(merged))
        merged = len(mine.batches)
        for what in ("history", "current"):
            left, right = _as_texts(lake, mine, what), _as_texts(spark, sparks, what)
            assert (left == right) if what == "history" else (sorted(left) == sorted(right)), (what, step)
        assert {k: v for k, v in one.rows.items() if v} == {k: v for k, v in two.rows.items() if v}
        assert (one.holes and one.holes.columns) == (two.holes and two.holes.columns)
    assert [way == Way.DRIVER for _, _, way in ways] == expected_ways
