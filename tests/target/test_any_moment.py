"""`tidemark.lake` on tables that were merged: every moment, from history alone, against the model of the changes."""

from __future__ import annotations

import copy
import random
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.remedies import Told
from tests.target.lake import NOON, TEXTS, Lake, StagedTable, table_schema, with_columns
from tests.target.model import Change, Key, Row, apply, random_changes
from tests.unit.test_architecture import REPOSITORY
from tidemark.errors import DeltaRsMissing, MomentBeforeHistory, MomentInvalid, MomentNotApplied, TableNotInLake
from tidemark.formats.compaction_plan import CompactionPlan
from tidemark.formats.merge_plan import MergePlan, PlannedTable, StagedLevel
from tidemark.formats.merge_result import PlanResult
from tidemark.lake import Lake as Reader
from tidemark.lake import Position, as_of_query
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.schema.table import Column
from tidemark.target.delta import delta_tables
from tidemark.target.plans import positions_table
from tidemark.target.plans.plan_execution import apply_plan
from tidemark.target.table_compaction import maintain_positions

PAGE = (REPOSITORY / "docs" / "time-travel.md").read_text()


@dataclass
class Kept:
    """A table, and what the model said of it after each transaction, by its commit LSN."""

    table: StagedTable
    rng: random.Random
    state: dict[Key, Row] = field(default_factory=dict)
    after: list[tuple[int, list[Row]]] = field(default_factory=list)

    def stage(self, transactions: int) -> None:
        commits = []
        for _ in range(transactions):
            lsn = self.table.next_lsn()
            listed = list(random_changes(self.rng, self.state, self.rng.randint(1, 4)))
            for change in listed:
                apply(self.state, ("id",), change)
            commits.append((lsn, lsn, listed))
            self.after.append((lsn, copy.deepcopy([self.state[key] for key in sorted(self.state)])))
        self.table.stage_committed(commits)


def reader(lake: Lake) -> Reader:
    return Reader(f"{lake.uri}/shop", spark=lake.spark)


def rows(past: Any, *names: str) -> list[Row]:
    return in_order([{name: row[name] for name in names or TEXTS} for row in past.rows().collect()])


def in_order(listed: list[Row]) -> list[Row]:
    return sorted(listed, key=lambda row: str(list(row.values())))


def merged(lake: Lake, *planned: PlannedTable, level: StagedLevel | None = None) -> None:
    plan: MergePlan = replace(lake.plan(*planned), level=level)
    result = apply_plan(lake.spark, plan)
    assert [table.error for table in result.tables if table.error] == []


@pytest.mark.thorough
def test_every_moment_of_random_changes_is_what_the_model_had(lake: Lake) -> None:
    """TOAST, changes of keys, truncates; in one merge, of which current knows the end alone."""
    kept = Kept(lake.table(table_schema("orders", TEXTS, schema="shop")), random.Random(11))
    kept.stage(14)
    lake.applied(kept.table.planned())
    table = reader(lake).table("shop.orders")
    for lsn, expected in kept.after[2:12:4]:
        assert rows(table.as_of(lsn + 1)) == in_order(expected), Lsn(lsn)
    newest = table.newest()
    stored = lake.stored("current", kept.table)
    names = [*TEXTS, "_commit_lsn", "_holes"]
    assert rows(newest, *names) == in_order([{name: row[name] for name in names} for row in stored])
    assert newest.version == lake.version("current", kept.table)
    assert newest.current().count() == len(stored)
    (snippet,) = re.findall(r'^=== "Spark"\n\n    ```python\n(.*?)    ```', PAGE, re.DOTALL | re.MULTILINE)
    spoken: dict[str, Any] = {"spark": lake.spark, "lake": lake.uri}
    exec(textwrap.dedent(snippet).replace("0/16B3748", str(Lsn(kept.after[7][0] + 1))), spoken)
    assert (spoken["now"].count(), spoken["was"].count()) == (len(stored), len(kept.after[7][1]))


@pytest.mark.some(1)
@pytest.mark.parametrize("generations", [(1, 1, 1), (1, 2, 2)], ids=["one generation", "two generations"])
def test_a_moment_opens_no_file_of_later_changes(lake: Lake, tmp_path: Path, generations: tuple[int, ...]) -> None:
    """Their files are not there. Nor are older ones, where the position of a time is looked up."""
    table = lake.table(table_schema("orders", {"id": "int", "n": "int"}, schema="shop"))
    history = lake.folder("history", table)
    after: list[tuple[Position, int, set[Path]]] = []
    for number, generation in enumerate(generations):
        table.generation = generation
        lsn = table.next_lsn()
        table.stage_committed([(lsn, lsn, [Change("insert", {"id": number, "n": number})])])
        end = table.batches[-1].end_lsn
        planned = table.planned(number)
        if number and generation > generations[number - 1]:
            planned = replace(planned, after=None)
        plan = lake.plan(planned, generation=generation)
        level = StagedLevel(generation, end, (NOON + timedelta(seconds=int(end))).isoformat(), (), ())
        result = apply_plan(lake.spark, replace(plan, level=level))
        assert result.tables[0].error is None
        after.append((Position(generation, end), lsn, set(history.glob("*.parquet"))))
    everything, older = after[-1][2], set[Path]()
    for number, (position, lsn, files) in enumerate(after):
        with removed(everything - files, tmp_path):
            past = reader(lake).table("shop.orders").as_of(position)
            assert rows(past, "id") == [{"id": of} for of in range(number + 1)], position
        in_between, before = (NOON + timedelta(seconds=lsn + s) for s in (0.5, -0.5))
        with removed(everything, tmp_path):
            assert reader(lake).as_of(in_between, "shop.orders").position == position
        if older:
            with removed(everything - (files - older), tmp_path):
                found = reader(lake).as_of(before, "shop.orders").position
                assert found == Position(position.generation, Lsn(lsn))
        older = files


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_a_time_leads_behind_the_longest_beginning_of_commits_in_which_none_is_later(lake: Lake, seed: int) -> None:
    """The source's clock is set back and forth; some files of history are copies, some are computed, some joined."""
    kept = Kept(lake.table(table_schema("orders", TEXTS, schema="shop")), random.Random(seed))
    table, times = kept.table, dict[int, datetime]()

    def clock(commit: int) -> datetime:
        if commit not in times:
            passed = timedelta(seconds=kept.rng.choice([1, 1, 1, 3, -2]), microseconds=kept.rng.randint(-1500, 1500))
            times[commit] = max(times.values(), default=NOON) + passed
        return times[commit]

    table.clock = clock
    for number in range(8):
        kept.stage(kept.rng.randint(1, 3))
        last = max(lsn for lsn, _ in kept.after)
        noted = times[last].isoformat() if kept.rng.random() < 0.7 else None
        level = StagedLevel(1, table.batches[-1].end_lsn, noted, (), ())
        merged(lake, table.planned(number), level=level)
        if number == 4:
            lake.spark.sql(f"OPTIMIZE delta.`{lake.path('history', table)}`")
    commits = sorted(lsn for lsn, _ in kept.after)
    assert [times[lsn] for lsn in commits] != sorted(times[lsn] for lsn in commits), "choose another seed"
    asked = [times[lsn] + timedelta(microseconds=add) for lsn in commits for add in (-1, 0, 1)]
    found = 0
    for time in asked:
        later = next((n for n, lsn in enumerate(commits) if times[lsn] > time), len(commits))
        try:
            lsn = reader(lake).as_of(time, "shop.orders").position.lsn
        except (MomentNotApplied, MomentBeforeHistory):
            assert later in (0, len(commits)), time
            continue
        assert commits[later - 1] < lsn, time
        assert later == len(commits) or lsn <= commits[later], time
        found += 1
    assert found > len(asked) // 2


@contextmanager
def removed(files: set[Path], folder: Path) -> Iterator[None]:
    """The files are elsewhere meanwhile."""
    for file in files:
        file.rename(folder / file.name)
    try:
        yield
    finally:
        for file in files:
            (folder / file.name).rename(file)


@pytest.mark.thorough
def test_validity_ranges_have_at_each_moment_the_rows_of_that_moment(lake: Lake) -> None:
    """TOAST, changes of keys, truncates, several changes of a key in a transaction."""
    kept = Kept(lake.table(table_schema("orders", TEXTS, schema="shop")), random.Random(23))
    kept.stage(30)
    lake.applied(kept.table.planned())
    table = reader(lake).table("shop.orders")
    ranges = [row.asDict() for row in table.validity().collect()]
    assert any(row["_op"] == "update" for row in ranges)
    truncated = lake.spark.read.format("delta").load(lake.path("history", kept.table)).where("_op = 'truncate'").count()
    assert truncated > 1, "choose another seed"
    for lsn, expected in kept.after:
        valid = [
            {name: row[name] for name in TEXTS}
            for row in ranges
            if row["_commit_lsn"] <= lsn and (row["_until_lsn"] is None or row["_until_lsn"] > lsn)
        ]
        assert in_order(valid) == in_order(expected), Lsn(lsn)
    assert in_order([{name: row[name] for name in TEXTS} for row in ranges if row["is_current"]]) == in_order(
        kept.after[-1][1]
    )
    for row in ranges:
        assert (row["valid_to"] is None) == row["is_current"]
        assert row["is_current"] or row["_commit_lsn"] < row["_until_lsn"]
    view = table.create_validity_view("scd2.orders")
    with_deleted = table.create_view_with_deleted("scd2.every_order")
    kept.stage(3)
    lake.applied(kept.table.planned())
    shown = lake.spark.sql(f"SELECT * FROM {view} WHERE is_current").collect()
    assert in_order([{name: row[name] for name in TEXTS} for row in shown]) == in_order(kept.after[-1][1])
    kept_rows = lake.spark.sql(f"SELECT * FROM {with_deleted}").collect()
    there = [row for row in kept_rows if row["_deleted_at"] is None]
    assert in_order([{name: row[name] for name in TEXTS} for row in there]) == in_order(kept.after[-1][1])
    ever = {row["id"] for _, state in kept.after for row in state}
    assert len(kept_rows) > len(there)
    assert sorted(row["id"] for row in kept_rows) == sorted(ever)
    with pytest.raises(ValueError, match="has a column id"):
        table.validity(("ID", "to", "now"))
    with pytest.raises(ValueError, match="has a column note"):
        table.with_deleted("note")
    lake.spark.sql("DROP SCHEMA scd2 CASCADE")


@pytest.mark.thorough
@pytest.mark.walks("MomentNotApplied", "MomentBeforeHistory", "MomentInvalid", "TableNotInLake", "DeltaRsMissing")
def test_a_moment_that_nobody_can_know_is_refused(lake: Lake, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(lake.table(table_schema("orders", TEXTS, schema="shop")), random.Random(5))
    kept.stage(2)
    lake.applied(kept.table.planned(0, 1))
    first = kept.table.batches[-1].end_lsn
    kept.stage(2)
    end = kept.table.batches[-1].end_lsn
    with told(MomentNotApplied, f"applied up to {first}", "Ask again after a run of the capture DAG"):
        reader(lake).table("shop.orders").as_of(end)
    lake.applied(kept.table.planned(1))
    table = reader(lake).table("shop.orders")
    assert rows(table.as_of(end)) == in_order(kept.after[-1][1])
    with told(MomentBeforeHistory, "Ask for a later moment"):
        table.as_of(kept.after[0][0])
    for moment, reason in ((NOON.replace(tzinfo=None), "zone"), ("yesterday", "not an LSN")):
        with told(MomentInvalid, reason, "Give an LSN as PostgreSQL writes it"):
            table.as_of(moment)
    assert table.as_of(str(end)).position == table.as_of(end).position
    with told(TableNotInLake, "shop.nothing", "the name is the table's id"):
        reader(lake).table("shop.nothing").as_of(end)
    with monkeypatch.context() as patch, told(DeltaRsMissing, "or give `Lake` the SparkSession that shall read"):
        patch.setitem(sys.modules, "deltalake", None)
        Reader(f"{lake.uri}/shop")
    assert reader(lake).table("shop.orders").newest().version >= 0
    # A time is known only once something that was committed later is there.
    last = NOON + timedelta(seconds=kept.after[-1][0])
    with pytest.raises(MomentNotApplied):
        table.as_of(last)
    assert table.as_of(last - timedelta(seconds=1)).position == Position(1, Lsn(kept.after[-1][0]))


@pytest.mark.thorough
def test_a_join_of_tables_as_of_one_moment_sees_whole_transactions(lake: Lake) -> None:
    """One table is merged further than the other, and the clock was set back between two commits."""
    orders, lines = (
        lake.table(table_schema(name, {"id": "int", "n": "int"}, schema="shop")) for name in ("orders", "lines")
    )
    for number in (1, 2, 3):
        lsn, _ = orders.next_lsn(), lines.next_lsn()
        for table in (orders, lines):
            table.stage_committed([(lsn, lsn, [Change("insert", {"id": number, "n": number})])])
    merged(lake, orders.planned(0, 2), lines.planned(0, 1))
    shop = reader(lake)
    both = shop.together("shop.orders", "shop.lines")
    assert rows(both["shop.orders"], "id") == rows(both["shop.lines"], "id") == [{"id": 1}]
    assert both.versions == {"shop.orders": None, "shop.lines": lake.version("current", lines)}
    views = both.create_views("at_first")
    assert [lake.spark.table(view).count() for view in views] == [1, 1]
    named = shop.register("shop_lake", "shop.orders")
    assert named == ["`shop_lake`.`orders`", "`shop_lake`.`orders__history`"]
    assert shop.register("shop_lake", "shop.orders") == named
    lake.applied(orders.planned(2))
    assert [lake.spark.table(name).count() for name in named] == [3, 3]
    assert [lake.spark.table(view).count() for view in views] == [1, 1]
    with pytest.raises(TableNotInLake):
        shop.register("shop_lake", "shop.nothing")
    with pytest.raises(ValueError, match=r"would both be shop_lake[.]Orders"):
        shop.register("shop_lake", "shop.orders", "old.Orders")
    assert both["shop.orders"].current().columns == ["id", "n", "_holes", "_commit_lsn", "_committed_at"]


@pytest.mark.thorough
def test_what_the_merge_notes_tells_tables_that_did_not_change_apart_from_those_that_wait(lake: Lake) -> None:
    busy, idle = (lake.table(table_schema(name, {"id": "int", "n": "int"}, schema="shop")) for name in ("busy", "idle"))
    busy.stage([Change("insert", {"id": 1, "n": 1})])
    idle.stage([Change("insert", {"id": 1, "n": 1})])
    ends = [Lsn(0x16B380000), Lsn(0x16B390000)]
    when = [(NOON + timedelta(seconds=int(end))).isoformat() for end in ends]
    merged(lake, busy.planned(), idle.planned(), level=StagedLevel(1, ends[0], when[0], (), ("shop.idle",)))
    shop = reader(lake)
    first = shop.together("shop.busy", "shop.idle")
    assert first.position == Position(1, ends[0])
    assert first["shop.idle"].exact_from is None
    busy.stage([Change("insert", {"id": 2, "n": 2})])
    merged(lake, busy.planned(1), level=StagedLevel(1, ends[1], when[1], ("shop.idle",), ()))
    both = shop.together("shop.busy", "shop.idle")
    assert both.position == Position(1, ends[1])
    assert None not in both.versions.values()
    assert both["shop.idle"].exact_from == Position(1, ends[1])
    assert both["shop.busy"].exact_from == Position(1, ends[0])
    # Nothing that the table has was committed so late, but something of the pipeline was.
    assert shop.table("shop.idle").as_of(NOON + timedelta(seconds=int(ends[0]))).position == Position(1, ends[1])
    lake.spark.read.format("delta").load(f"{lake.uri}/shop/_positions").createOrReplaceTempView("positions")
    (query,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    of_these = query.replace("shop.orders", "shop.busy").replace("shop.lines", "shop.idle")
    assert [tuple(row) for row in lake.spark.sql(of_these).collect()] == [(1, int(ends[1]))]


def test_a_table_that_the_merge_noted_is_opened_without_its_history(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.table(table_schema("orders", {"id": "int", "n": "int"}, schema="shop"))
    table.stage([Change("insert", {"id": 1, "n": 1})])
    end = Lsn(0x16B380000)
    merged(lake, table.planned(), level=StagedLevel(1, end, None, (), ()))
    monkeypatch.setattr(as_of_query, "extents", None)
    newest = reader(lake).together("shop.orders")["shop.orders"]
    assert (newest.position, newest.current().count()) == (Position(1, end), 1)
    assert rows(reader(lake).table("shop.orders").as_of(end), "id") == [{"id": 1}]


@pytest.mark.thorough
def test_a_plan_that_is_repeated_and_a_position_that_cannot_be_noted_harm_nobody(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.table(table_schema("orders", {"id": "int", "n": "int"}, schema="shop"))
    table.stage([Change("insert", {"id": 1, "n": 1})])
    level = StagedLevel(1, Lsn(0x16B380000), None, (), ())
    with monkeypatch.context() as patched:
        patched.setattr(positions_table.data_files, "add_rows", None)
        merged(lake, table.planned(), level=level)
    assert reader(lake).table("shop.orders").newest().position == Position(1, table.batches[-1].end_lsn)
    merged(lake, table.planned(), level=level)
    merged(lake, table.planned(), level=level)
    noted = lake.spark.read.format("delta").load(f"{lake.uri}/shop/_positions").collect()
    assert [(row["table_name"], row["lsn"], row["current_version"]) for row in noted] == [
        ("shop.orders", 0x16B380000, lake.version("current", table))
    ] * 2
    assert reader(lake).table("shop.orders").newest().position == Position(1, Lsn(0x16B380000))


@pytest.mark.thorough
def test_a_name_leads_to_the_table_that_has_it_now(lake: Lake) -> None:
    schema = table_schema("orders", {"id": "int", "n": "int"}, schema="shop")
    first, second = lake.table(schema), lake.table(replace(schema, table=TableName("shop", "orders", 2)))
    first.stage([Change("insert", {"id": 1, "n": 1})])
    second.stage([Change("insert", {"id": 2, "n": 2})])

    def ids(name: str) -> list[int]:
        found = reader(lake).table(name)
        newest = sorted(row["id"] for row in found.newest().rows().collect())
        assert newest == sorted(row["id"] for row in found.rows().collect())
        return newest

    def level(lsn: int, names: dict[str, str | None], *others: str) -> StagedLevel:
        return StagedLevel(1, Lsn(0x16B380000 + lsn), None, others, (), names)

    merged(lake, first.planned(), level=level(0, {}))
    assert ids("shop.orders") == [1]
    merged(lake, second.planned(), level=level(1, {"shop.orders~2": "shop.orders"}))
    assert (ids("shop.orders"), ids("shop.orders~1"), ids("shop.orders~2")) == ([2], [1], [2])
    first.stage([Change("insert", {"id": 3, "n": 3})])
    swapped: dict[str, str | None] = {"shop.orders~2": "shop.old"}
    merged(lake, first.planned(1), level=level(2, swapped, "shop.orders~2"))
    assert (sorted(ids("shop.orders")), ids("shop.old")) == ([1, 3], [2])


@pytest.mark.thorough
def test_maintenance_makes_few_files_of_what_merges_noted(lake: Lake) -> None:
    level = StagedLevel(1, Lsn(0x16B380000), None, ("shop.idle",), ())
    plan = replace(lake.plan(), level=level)
    for _ in range(9):
        positions_table.record_positions(lake.spark, plan, PlanResult("p", "shop", 1, ()))
    maintain_positions(lake.spark, CompactionPlan("p", "shop", lake.uri, "look", (), 1, 7, False))
    table = delta_tables.pin(lake.spark, f"{lake.uri}/shop/_positions")
    assert (table.files, delta_tables.rows(table).count()) == (1, 9)


@pytest.mark.thorough
def test_columns_that_came_and_went_and_rows_without_key(lake: Lake) -> None:
    state = "it's \\ open, ${spark.app.name}"  # which is a setting of Spark's
    schema = table_schema("log", {"n": "int", "f": "double"}, key=(), identity="full", schema="shop")
    table = lake.table(schema)
    one, other = {"n": 1, "f": -0.0}, {"n": 1, "f": 0.0}
    table.stage([Change("insert", one), Change("insert", one), Change("insert", other)])
    first = table.batches[-1].end_lsn
    lake.applied(table.planned())
    added = with_columns(schema, {"state": "string"})
    table.schema = replace(
        added,
        columns=(*added.columns[:2], Column("state", "text", 25, -1, "string", missing=state)),
    )
    full = {"n": 1, "f": -0.0, "state": state}
    table.stage(
        [
            Change("update", {**full, "n": 2}, old=full),
            Change("delete", dict.fromkeys(full), old={**full, "f": 0.0}),
            Change("insert", {"n": None, "f": float("nan"), "state": None}),
        ]
    )
    lake.applied(table.planned(1))
    reading = reader(lake).table("shop.log")
    names = ("n", "f", "state")
    before = Counter(repr(tuple(row.values())) for row in rows(reading.as_of(first), *names))
    assert before == {"(1, -0.0, None)": 2, "(1, 0.0, None)": 1}
    after = Counter(repr(tuple(row.values())) for row in rows(reading.newest(), *names))
    assert after == Counter(repr(tuple(row[n] for n in names)) for row in lake.stored("current", table))
    assert after == {f"(1, -0.0, {state!r})": 1, f"(2, -0.0, {state!r})": 1, "(None, nan, None)": 1}
