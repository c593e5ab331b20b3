"""Under the event trigger every definition is followed exactly, however many lie between two runs. Where the trigger
missed one, the catalogue decides."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.definitions import missing, numbers, state
from tests.support.pipeline import Pipeline
from tests.support.thorough import either
from tidemark.capture import drain as drain_module
from tidemark.ledger.captured import tables
from tidemark.source import event_trigger

TABLE = "public.item"


def install(pipeline: Pipeline) -> None:
    pipeline.execute(event_trigger.create_sql(pipeline.config, "postgres"))


@pytest.fixture
def item(pipeline: Pipeline) -> Pipeline:
    """A captured table whose values name the number of their column. The ledger has a look from under the trigger."""
    pipeline.execute("CREATE TABLE item (id int PRIMARY KEY, a text, b text)")
    pipeline.begin()
    install(pipeline)
    pipeline.execute("INSERT INTO item VALUES (1, '2', '3')")
    pipeline.drain()
    pipeline.drain()
    return pipeline


def values_by_number(pipeline: Pipeline) -> list[dict[int, Any]]:
    """The staged rows, each value under the number of its column."""
    with pipeline.ledger_connection() as ledger:
        versions = {(v.table, v.version): v for of_table in tables.versions_of(ledger, None).values() for v in of_table}
    rows = []
    for manifest in pipeline.manifests():
        for changed in manifest.tables:
            for file in changed.files:
                schema = versions[next(t for t, _ in versions if str(t) == changed.table), file.schema_version]
                for row in pq.read_table(f"{pipeline.config.lake}/{file.path}").to_pylist():
                    rows.append({column.attnum: row[column.name] for column in schema.columns})
    return rows


INSERT = "INSERT INTO item SELECT coalesce(max(id), 0) + 1, {} FROM item"
SEQUENCES = {
    "dropped and added under one name": (
        "ALTER TABLE item DROP a",
        "ALTER TABLE item ADD a text",
        INSERT.format("'3', '4'"),
    ),
    "dropped and added in one statement": ("ALTER TABLE item DROP a, ADD a text", INSERT.format("'3', '4'")),
    "rows on both sides": (
        INSERT.format("'2', '3'"),
        "ALTER TABLE item DROP a",
        INSERT.format("'3'"),
        "ALTER TABLE item ADD a text",
        INSERT.format("'3', '4'"),
    ),
    "rows on both sides of a renaming circle": (
        INSERT.format("'2', '3'"),
        "ALTER TABLE item RENAME a TO x",
        "ALTER TABLE item RENAME b TO a",
        INSERT.format("'2', '3'"),
        "ALTER TABLE item RENAME x TO b",
        INSERT.format("'2', '3'"),
        "ALTER TABLE item DROP b",
        "ALTER TABLE item ADD b text",
        INSERT.format("'3', '4'"),
        "ALTER TABLE item DROP b",
    ),
    "one transaction": (
        "BEGIN",
        INSERT.format("'2', '3'"),
        "ALTER TABLE item DROP a",
        "SAVEPOINT s",
        "ALTER TABLE item ADD z text",
        INSERT.format("'3', '4'"),
        "ROLLBACK TO s",
        "ALTER TABLE item ADD a text",
        INSERT.format("'3', '4'"),
        "ALTER TABLE item RENAME a TO c",
        INSERT.format("'3', '4'"),
        "COMMIT",
    ),
    "a column that came and went": (
        "ALTER TABLE item ADD c text",
        INSERT.format("'2', '3', '4'"),
        "ALTER TABLE item DROP c",
        "ALTER TABLE item DROP b",
        "ALTER TABLE item ADD b text",
        INSERT.format("'2', '5'"),
    ),
    "the key is made again": (
        "ALTER TABLE item DROP CONSTRAINT item_pkey",
        "ALTER TABLE item ADD PRIMARY KEY (id)",
        INSERT.format("'2', '3'"),
    ),
    "emptied and altered": (
        "TRUNCATE item",
        "ALTER TABLE item ADD c text",
        INSERT.format("'2', '3', '4'"),
        "ALTER TABLE item DROP a",
        "TRUNCATE item",
        INSERT.format("'3', '4'"),
    ),
    "no row": ("ALTER TABLE item DROP a", "ALTER TABLE item RENAME b TO a", "ALTER TABLE item ADD b text"),
}


@pytest.mark.some(4)
@pytest.mark.parametrize("looks", either(one="one", each="each"))
@pytest.mark.parametrize("sequence", SEQUENCES)
def test_every_value_stands_under_its_column_and_nothing_is_marked(item: Pipeline, sequence: str, looks: str) -> None:
    for statement in SEQUENCES[sequence]:
        item.execute(statement)
        if looks == "each" and sequence not in ("one transaction", "the key is made again"):
            item.drain()
    item.drain()
    item.execute("UPDATE item SET id = id")
    item.drain()
    rows = values_by_number(item)
    assert len(rows) > 1
    for row in rows:
        told = {number: value for number, value in row.items() if number > 1 and value is not None}
        assert all(value == str(number) for number, value in told.items()), rows
    assert state(item, TABLE) == ("merging", None)
    assert [t for t, row in item.table_rows().items() if row.life.is_captured] == [TABLE]


def test_a_default_is_known_whatever_its_column_is_called_by_then(item: Pipeline) -> None:
    item.execute(
        "ALTER TABLE item ADD c text DEFAULT '4'",
        "INSERT INTO item VALUES (2, '2', '3')",
        "ALTER TABLE item RENAME c TO d",
        "INSERT INTO item VALUES (3, '2', '3')",
    )
    item.drain()
    assert (missing(item)["d"], numbers(item)["d"], state(item, TABLE)) == ("4", 4, ("merging", None))


def test_what_no_row_shows_is_a_version_all_the_same(item: Pipeline) -> None:
    item.execute("ALTER TABLE item RENAME a TO x", "ALTER TABLE item ADD a text DEFAULT '4'")
    item.drain()
    assert numbers(item) == {"id": 1, "x": 2, "b": 3, "a": 4}
    assert missing(item)["a"] == "4"


def test_a_definition_from_behind_the_look_is_the_next_runs_too(
    item: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This run stages the message, and its look has not seen the definition."""
    looked = drain_module.CatalogueComparison

    def look_and_alter(*about: Any) -> Any:
        looking = looked(*about)
        item.execute("ALTER TABLE item DROP a", "ALTER TABLE item ADD a float DEFAULT 4.5")
        return looking

    monkeypatch.setattr(drain_module, "CatalogueComparison", look_and_alter)
    item.drain()
    monkeypatch.undo()
    item.execute("INSERT INTO item VALUES (2, '3', 4.0)")
    item.drain()
    assert values_by_number(item)[-1] == {1: 2, 3: "3", 4: 4.0}
    assert state(item, TABLE) == ("merging", None)


@pytest.mark.parametrize(
    ("statement", "columns"),
    [
        ("ALTER TABLE item ADD c float DEFAULT random()", [4]),
        ("ALTER TABLE item ADD c text GENERATED ALWAYS AS (a || b) STORED", None),
        ("ALTER TABLE item ALTER a TYPE text USING 'x' || a, ALTER b TYPE varchar", []),
    ],
)
def test_what_only_the_rows_say_is_marked(item: Pipeline, statement: str, columns: list[int] | None) -> None:
    item.execute(statement)
    item.drain()
    if columns is None:  # not published
        assert state(item, TABLE) == ("merging", None)
        return
    assert state(item, TABLE)[1] is not None
    assert (item.table_row(TABLE).columns_in_doubt or []) == columns


@pytest.mark.parametrize("runs", ["one", "two"])
@pytest.mark.parametrize("has_row", [True, False], ids=["a row behind it", "no row behind it"])
def test_an_unpublished_generated_column_that_becomes_ordinary_is_marked(
    item: Pipeline, runs: str, has_row: bool
) -> None:
    item.execute("ALTER TABLE item ADD c text GENERATED ALWAYS AS (a || b) STORED", INSERT.format("'2', '3'"))
    if runs == "two":
        item.drain()
    item.execute("ALTER TABLE item ALTER c DROP EXPRESSION")
    if has_row:
        item.execute(INSERT.format("'2', '3', '4'"))
    item.drain()
    assert state(item, TABLE)[1] is not None
    assert item.table_row(TABLE).columns_in_doubt == [4]


def test_what_the_trigger_missed_the_catalogue_decides(item: Pipeline) -> None:
    item.execute("SET event_triggers = off")  # since PostgreSQL 17
    item.execute("ALTER TABLE item ADD c float DEFAULT random()", "RESET event_triggers")
    item.execute("ALTER TABLE item ADD d text", "INSERT INTO item (id) VALUES (2)")
    item.drain()
    assert state(item, TABLE)[1] is not None


def test_an_error_of_the_trigger_leaves_the_table_to_the_catalogue(item: Pipeline) -> None:
    item.execute(
        "BEGIN ISOLATION LEVEL REPEATABLE READ",
        "ALTER TABLE item ADD c float DEFAULT random()",
        "COMMIT",
    )
    item.drain()
    assert state(item, TABLE)[1] is not None
