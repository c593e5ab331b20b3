"""As which table a relation is kept, whatever it is called: dropped and created again, renamed, swapped (R11)."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.pipeline import Pipeline
from tests.support.runs import make_plan
from tidemark.capture.merge_planning import Ingested, IngestedTable
from tidemark.capture.table_progress import advanced
from tidemark.config import Maintenance, TableRule
from tidemark.errors import StagingMissing
from tidemark.formats import layout
from tidemark.ledger import leases
from tidemark.ledger.captured import put_aside as pairs
from tidemark.maintenance.put_aside_removal import remove_put_aside
from tidemark.names import TableName
from tidemark.observe.status import read_status
from tidemark.observe.status_json import to_json
from tidemark.observe.status_text import text
from tidemark.wording import moment


@pytest.fixture
def items(pipeline: Pipeline) -> Pipeline:
    """One captured table with a row; the publication is of all tables."""
    pipeline.config = replace(pipeline.config, manage_publication=False)
    pipeline.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
    pipeline.begin()
    pipeline.sound()
    pipeline.execute("INSERT INTO item VALUES (1, 'first')")
    pipeline.drain()
    return pipeline


def ids(pipeline: Pipeline, table: str) -> list[int]:
    return [row["id"] for row in pipeline.staged(f"public.{table}")]


def kept(pipeline: Pipeline) -> dict[str, tuple[str, bool]]:
    """By id: what the relation is called, and whether it is there."""
    rows = pipeline.ledger_query('SELECT "table", name, gone_lsn IS NULL FROM tidemark.relations')
    return {table: (name, is_there) for table, name, is_there in rows}


def test_a_table_with_the_name_of_a_dropped_one_has_a_place_of_its_own(items: Pipeline) -> None:
    items.execute("BEGIN", "INSERT INTO item VALUES (2)", "DROP TABLE item")
    items.execute("CREATE TABLE item (id int PRIMARY KEY, other int)", "INSERT INTO item VALUES (3, 3)", "COMMIT")
    items.drain()
    assert (ids(items, "item"), ids(items, "item~2")) == ([1, 2], [3])
    assert not items.table_row("public.item").life.needs_backfill
    items.sound()
    assert kept(items) == {"public.item": ("public.item", False), "public.item~2": ("public.item", True)}


def test_a_name_that_five_tables_had_within_a_batch_has_five_places(items: Pipeline) -> None:
    for number in range(2, 6):
        items.execute("DROP TABLE item", "CREATE TABLE item (id int PRIMARY KEY)")
        items.execute(f"INSERT INTO item VALUES ({number})")
    items.sound()
    items.drain()
    tables = {str(table.table) for table in items.manifests()[-1].tables}
    assert tables == {f"public.item~{number}" for number in range(2, 6)}
    assert sorted(ids(items, f"item~{number}")[0] for number in range(2, 6)) == [2, 3, 4, 5]
    items.sound()
    (live,) = [table for table, (_, is_there) in kept(items).items() if is_there]
    assert ids(items, live.removeprefix("public.")) == [5]


def test_a_renamed_table_keeps_its_place(items: Pipeline) -> None:
    items.execute("CREATE SCHEMA other")
    items.with_tables("*.*")
    items.sound()
    items.execute("BEGIN", "INSERT INTO item VALUES (2)", "ALTER TABLE item RENAME TO thing")
    items.execute("INSERT INTO thing VALUES (3)", "COMMIT", "ALTER TABLE thing SET SCHEMA other")
    items.execute("INSERT INTO other.thing VALUES (4)")
    items.sound()
    items.drain()
    assert ids(items, "item") == [1, 2, 3, 4]
    assert kept(items) == {"public.item": ("other.thing", True)}
    assert items.table_row("public.item").life.keeps_its_promise
    ingested = IngestedTable("public.item", 1, None, items.staged_lsn(), {}, 0.0, None, parked=False)
    (event,) = advanced(items.task(), [Ingested(("plan",), (ingested,))])
    assert (str(event.table), str(event.called)) == ("public.item", "other.thing")


def test_a_form_takes_a_table_by_the_name_of_now_and_by_its_id(items: Pipeline) -> None:
    items.execute("CREATE TABLE other (id int PRIMARY KEY)", "ALTER TABLE item RENAME TO old_item")
    items.execute("ALTER TABLE other RENAME TO item")
    items.sound()
    assert [b.table for b in items.plan(tables=["public.old_item"])] == ["public.item"]
    assert [b.table for b in items.plan(tables=["public.item"], replace=True)] == ["public.item", "public.item~2"]


def test_tables_that_swap_their_names_keep_their_rows(items: Pipeline) -> None:
    items.execute("CREATE TABLE new_item (id int PRIMARY KEY, name text)", "INSERT INTO new_item VALUES (10)")
    items.sound()
    items.execute("BEGIN", "INSERT INTO item VALUES (2)", "INSERT INTO new_item VALUES (11)")
    items.execute("ALTER TABLE item RENAME TO old_item", "ALTER TABLE new_item RENAME TO item")
    items.execute("INSERT INTO item VALUES (12)", "INSERT INTO old_item VALUES (3)", "COMMIT")
    items.drain()
    assert (ids(items, "item"), ids(items, "new_item")) == ([1, 2, 3], [10, 11, 12])
    items.sound()
    assert kept(items) == {
        "public.item": ("public.old_item", True),
        "public.new_item": ("public.item", True),
    }
    plan = make_plan(items.task("merge"))
    assert plan is not None
    assert plan.level is not None
    assert plan.level.names == {"public.item": "public.old_item", "public.new_item": "public.item"}


def test_what_changed_under_a_name_that_the_file_does_not_name_is_said(items: Pipeline) -> None:
    items.with_tables("public.item")
    items.sound()
    items.execute("ALTER TABLE item RENAME TO away", "INSERT INTO away VALUES (2)", "ALTER TABLE away RENAME TO item")
    items.execute("INSERT INTO item VALUES (3)")
    items.sound()
    items.drain()
    assert ids(items, "item") == [1, 3]
    reason = items.table_row("public.item").backfill_reason
    assert reason is not None
    assert "it was called public.away for a while" in reason


def test_an_oid_that_is_given_out_again_is_another_table(items: Pipeline) -> None:
    items.execute("DROP TABLE item", "CREATE TABLE item (id int PRIMARY KEY)")
    oid = items.one("SELECT 'item'::regclass::oid::bigint")
    items.ledger_query(f"UPDATE tidemark.relations SET relation_oid = {oid}")  # as if the first had had it
    items.sound()
    items.execute("INSERT INTO item VALUES (2)")
    items.drain()
    assert (ids(items, "item"), ids(items, "item~2")) == ([1], [2])


def put_aside(items: Pipeline) -> None:
    """Drop the table and create another one, until nothing comes of the first any more."""
    items.execute("DROP TABLE item", "CREATE TABLE item (id int PRIMARY KEY)")
    items.sound()
    assert items.table_row("public.item").life.capture == "left"  # something of it waits to be merged
    items.ledger_query("UPDATE tidemark.positions SET history_lsn = '1/0', current_lsn = '1/0'")
    items.ledger_query(
        "INSERT INTO tidemark.positions SELECT pipeline, 1, \"table\", '1/0', '1/0' FROM tidemark.tables "
        "ON CONFLICT DO NOTHING"
    )
    items.sound()


def test_a_table_that_is_put_aside_is_listed_apart(items: Pipeline) -> None:
    put_aside(items)
    assert items.table_row("public.item").life.capture == "forgotten"
    assert items.table_row("public.item~2").life.can_be_read
    status = read_status(items.config, source=items.source, ledger=items.ledger)
    (pair,) = status.put_aside
    assert (pair.table, pair.name) == ("public.item", "public.item")
    assert [(pair.lsn,)] == items.ledger_query("SELECT gone_lsn FROM tidemark.relations WHERE gone_lsn IS NOT NULL")
    assert f"  aside   public.item since {moment(pair.since)}, all of it below {pair.lsn}; maintenance " in text(status)
    (said,) = to_json(status)["put_aside"]
    assert datetime.fromisoformat(said["removed_from"]) == pair.since + timedelta(days=30)
    items.config = replace(items.config, maintenance=Maintenance(put_aside_days=None))
    assert "; kept for good" in text(read_status(items.config, source=items.source, ledger=items.ledger))


def test_what_is_put_aside_is_removed_in_its_time(items: Pipeline) -> None:
    """Also where a run died in the middle of it; the tables of now stay, and no relation gets the id again."""
    put_aside(items)
    for table in ("public.item", "public.item~2"):
        for folder in folders(items, table):
            items.store.write_new(f"{folder}/_delta_log/0.json", b"{}")
    assert removed_after(items, days=29) == []
    items.config = replace(items.config, maintenance=Maintenance(put_aside_days=None))
    assert removed_after(items, days=900) == []
    items.config = replace(items.config, maintenance=Maintenance(put_aside_days=60))
    with (
        leases.hold(items.ledger, items.config.pipeline, leases.of_table("public.item"), "merge") as lease,
        items.ledger_connection() as ledger,
    ):
        assert removed_after(items, days=61) == []  # somebody works on it
        assert pairs.begin_removal(ledger, lease, "public.item")
    items.store.delete(folders(items, "public.item")[0])
    assert removed_after(items, days=1) == ["public.item"]
    assert [items.store.list(folder) for folder in folders(items, "public.item")] == [[], []]
    assert all(items.store.list(folder) for folder in folders(items, "public.item~2"))
    assert read_status(items.config, source=items.source, ledger=items.ledger).put_aside == ()
    assert removed_after(items, days=900) == []
    items.execute("DROP TABLE item", "CREATE TABLE item (id int PRIMARY KEY)")
    items.sound()
    assert kept(items)["public.item~3"] == ("public.item", True)


def test_what_is_put_aside_stays_noted_while_the_lake_is_not_mounted(items: Pipeline) -> None:
    """Between the two steps of a maintenance the volume was unmounted: nothing is there to be removed."""
    put_aside(items)
    items.store.write_new(f"{folders(items, 'public.item')[1]}/_delta_log/0.json", b"{}")
    items.config = replace(items.config, maintenance=Maintenance(put_aside_days=60))
    there = items.config
    items.config = replace(there, lake=f"{there.lake}-unmounted")
    with pytest.raises(StagingMissing):
        removed_after(items, days=61)
    items.config = there
    assert removed_after(items, days=61) == ["public.item"]


def test_a_table_that_is_there_still_is_not_removed(items: Pipeline) -> None:
    """Renamed to what the file does not name, it may be named again; dropped without a successor, it may be all that is
    left."""
    items.with_tables("public.item")
    items.execute("ALTER TABLE item RENAME TO old_item", "CREATE TABLE item (id int PRIMARY KEY)")
    items.sound()
    items.ledger_query(
        "INSERT INTO tidemark.positions SELECT pipeline, 1, \"table\", '1/0', '1/0' FROM tidemark.tables "
        "ON CONFLICT DO NOTHING"
    )
    items.sound()
    assert items.table_row("public.item").life.capture == "forgotten"
    items.execute("DROP TABLE item")
    items.sound()
    assert read_status(items.config, source=items.source, ledger=items.ledger).put_aside == ()
    assert removed_after(items, days=900) == []


def test_changes_that_wait_keep_what_was_put_aside(items: Pipeline) -> None:
    put_aside(items)
    items.ledger_query("UPDATE tidemark.positions SET history_lsn = '0/1', current_lsn = '0/1'")
    assert removed_after(items, days=31) == []


def folders(items: Pipeline, table: str) -> list[str]:
    name = TableName.parse(table)
    return [layout.current_table(items.config.pipeline, name), layout.history_table(items.config.pipeline, name)]


def removed_after(items: Pipeline, days: int) -> list[str]:
    now = datetime.now(UTC) + timedelta(days=days)
    return remove_put_aside(items.task("retire", now=lambda: now))


def test_a_dropped_table_takes_its_open_backfill_along(items: Pipeline) -> None:
    (backfill,) = items.plan(tables=("public.item",))
    items.read()
    items.execute("DROP TABLE item", "CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (2)")
    items.drain()
    (chunk,) = items.chunks(backfill)
    assert chunk.rejected == "the table is not captured any more"
    items.sound()
    assert items.again(backfill).state == "closed"
    assert ids(items, "item~2") == [2]


LATER = ("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (2)")
AS_ITEM = ("DROP TABLE item", "ALTER TABLE later RENAME TO item")
REPLACED = {
    "created": (
        (),
        ("DROP TABLE item", "CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (2)"),
        False,
    ),
    "renamed to its name": (LATER, AS_ITEM, True),
    "filled before it was logged": (
        (),
        (
            "DROP TABLE item",
            "CREATE UNLOGGED TABLE item (id int PRIMARY KEY)",
            "INSERT INTO item VALUES (2)",
            "ALTER TABLE item SET LOGGED",
        ),
        True,
    ),
    "written anew": (
        (),
        (
            "DROP TABLE item",
            "CREATE TABLE item (id int PRIMARY KEY)",
            "INSERT INTO item VALUES (2)",
            "ALTER TABLE item ADD at timestamptz DEFAULT clock_timestamp()",
        ),
        True,
    ),
    "spelled otherwise": (
        (),
        (
            "CREATE TYPE mood AS ENUM ('sad')",
            "DROP TABLE item",
            "CREATE TABLE item (id int PRIMARY KEY, mood mood)",
            "INSERT INTO item VALUES (2, 'sad')",
            "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
        ),
        True,
    ),
    "with partitions": (
        (),
        (
            "DROP TABLE item",
            "CREATE TABLE item (id int PRIMARY KEY) PARTITION BY RANGE (id)",
            "CREATE TABLE item_1 PARTITION OF item FOR VALUES FROM (0) TO (10)",
            "INSERT INTO item VALUES (2)",
        ),
        False,
    ),
    "with a partition that has rows": (
        (),
        (
            "DROP TABLE item",
            "CREATE TABLE item (id int PRIMARY KEY) PARTITION BY RANGE (id)",
            "CREATE TABLE item_1 (id int PRIMARY KEY)",
            "INSERT INTO item_1 VALUES (2)",
            "ALTER TABLE item ATTACH PARTITION item_1 FOR VALUES FROM (0) TO (10)",
        ),
        True,
    ),
    "renamed in the transaction that created it": ((), ("BEGIN", *LATER, *AS_ITEM, "COMMIT"), True),
}


OFTEN = ("created", "renamed to its name", "renamed in the transaction that created it", "filled before it was logged")


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=() if how in OFTEN else pytest.mark.thorough) for how in REPLACED]
)
def test_a_table_whose_rows_all_stand_in_the_stream_needs_no_backfill(items: Pipeline, how: str) -> None:
    before, statements, needs_backfill = REPLACED[how]
    items.with_tables("public.item")
    items.sound()
    for some in (before, statements):
        items.execute(*some)
        items.drain()
    items.sound()
    assert items.table_row("public.item~2").life.needs_backfill == needs_backfill


def test_a_table_that_was_there_before_the_other_one_joined_needs_a_backfill(pipeline: Pipeline) -> None:
    pipeline.config = replace(pipeline.config, manage_publication=False)
    pipeline.execute("CREATE TABLE item (id int PRIMARY KEY)")
    pipeline.begin()
    pipeline.sound()
    pipeline.drain()
    pipeline.ledger_query("UPDATE tidemark.tables SET join_horizon = join_horizon + 1000")  # as if it joined later
    pipeline.execute("DROP TABLE item", "CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (2)")
    pipeline.sound()
    assert pipeline.table_row("public.item~2").life.target == "existing_rows"


# --- any order --------------------------------------------------------------------------------------------------------


@dataclass
class World:
    """The model: which table has which name, and what was committed of each while the file named it. Names that begin
    with "x" are not named by it."""

    names: dict[str, int] = field(default_factory=dict)
    changes: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    unseen: set[int] = field(default_factory=set)
    made: int = 0
    number: int = 0

    def statements(self, rng: random.Random) -> list[str]:
        """One thing that happens, after which the model has it too."""
        free = [name for name in ("t1", "t2", "t3", "x1") if name not in self.names]
        taken = sorted(self.names)
        what = rng.choice(["create", "drop", "rename", "swap", *["insert"] * 5])
        if what == "create" and free:
            self.made += 1
            self.names[name := rng.choice(free)] = self.made
            return [f"CREATE TABLE {name} (id int PRIMARY KEY, who int)"]
        if what == "drop" and taken:
            del self.names[name := rng.choice(taken)]
            return [f"DROP TABLE {name}"]
        if what == "rename" and taken and free:
            name, other = rng.choice(taken), rng.choice(free)
            self.names[other] = self.names.pop(name)
            return [f"ALTER TABLE {name} RENAME TO {other}"]
        if what == "swap" and len(taken) > 1:
            name, other = rng.sample(taken, 2)
            self.names[name], self.names[other] = self.names[other], self.names[name]
            moves = [(name, "between"), (other, name), ("between", other)]
            return [f"ALTER TABLE {old} RENAME TO {new}" for old, new in moves]
        if what == "insert" and taken:
            self.number += 1
            who = self.names[name := rng.choice(taken)]
            if name.startswith("x"):
                self.unseen.add(who)
            else:
                self.changes[who].append(self.number)
            return [f"INSERT INTO {name} VALUES ({self.number}, {who})"]
        return []


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 12))])
def test_rows_of_one_table_never_go_to_another_one(pipeline: Pipeline, seed: int) -> None:
    rng, world = random.Random(seed), World()
    pipeline.config = replace(pipeline.config, manage_publication=False, tables=(TableRule("public.t*"),))
    pipeline.begin()
    pipeline.preflight()
    for _ in range(12):
        for _ in range(rng.randrange(1, 4)):
            statements = [s for _ in range(rng.randrange(1, 9)) for s in world.statements(rng)]
            pipeline.execute(*(["BEGIN", *statements, "COMMIT"] if rng.random() < 0.6 else statements))
        if rng.random() < 0.5:
            pipeline.preflight()
        pipeline.drain()
    staged = defaultdict(list)
    for table in pipeline.table_rows():
        rows = pipeline.staged(table)
        assert len({row["who"] for row in rows}) <= 1, f"{table} has rows of several tables"
        for row in rows:
            staged[row["who"]].append(row["id"])
    assert dict(staged) == {who: changes for who, changes in world.changes.items() if changes}
