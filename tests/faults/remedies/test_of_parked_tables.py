"""What ends the park of a table, command by command as `status` and page print it, and the tables end equal.

The commands are taken out of the messages: a test that knew them itself would not notice that one is wrong.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import judge
from tests.support.capture import Environment
from tests.support.remedies import Told, ends_equal
from tidemark.config import TableRule
from tidemark.formats.error_record import ErrorRecord
from tidemark.names import spark_identifier
from tidemark.observe.park_endings import ending_commands
from tidemark.observe.table_commands import pass_over, unpark

pytestmark = pytest.mark.thorough

STEP = re.compile(
    r"tidemark unpark \S+ (?P<unpark>\S+?)(?P<anew> --anew)?(?P<past> --past)?(?=;|$)"
    r"|(?P<run>let a run of \w+_capture end)"
    r"|airflow dags trigger \w+_backfill --conf '(?P<backfill>[^']+)'"
)
# Of each two the first goes on with its Delta tables, the second begins anew, or behind what is staged.
IN_PAIRS = ("removed", "older", "widened_there", "gone", "changed")


def parked(shop: Environment) -> dict[str, ErrorRecord]:
    return {
        name.removeprefix("shop."): row.error
        for name, row in shop.table_rows().items()
        if row.life.is_parked and row.error is not None
    }


def ways(shop: Environment, table: str) -> list[str]:
    return ending_commands(shop.config, f"shop.{table}", parked(shop)[table])


def follow(shop: Environment, way: str) -> None:
    """The two folders of "once A and B are removed", then each command."""
    for folder in re.findall(rf"{shop.config.pipeline}/(?:history|current)/\S+", way.partition("are removed")[0]):
        shutil.rmtree(Path(shop.config.lake) / folder, ignore_errors=True)
    steps = list(STEP.finditer(way))
    assert steps, way
    for step in steps:
        if step["unpark"]:
            if step["past"]:
                sentence, done = pass_over(shop.config, step["unpark"], ledger=shop.ledger)
            else:
                sentence, done = unpark(shop.config, step["unpark"], ledger=shop.ledger, anew=bool(step["anew"]))
            assert done, sentence
        elif step["run"]:
            shop.run()
        else:
            shop.backfill(*json.loads(step["backfill"])["tables"])


def positions(shop: Environment) -> dict[str, tuple[str, str]]:
    query = 'SELECT "table", history_lsn::text, current_lsn::text FROM tidemark.positions'
    return {table: (history, current) for table, history, current in shop.ledger_query(query)}


def restore(shop: Environment, table: str, position: tuple[str, str]) -> None:
    update = 'UPDATE tidemark.positions SET history_lsn = %s, current_lsn = %s WHERE "table" = %s'
    shop.ledger_query(update, *position, table)


class Lake:
    """Somebody with a shell, where the lake lies."""

    def __init__(self, shop: Environment) -> None:
        self.shop = shop
        self.kept = shop.folder / "kept"

    def folders(self, table: str) -> list[Path]:
        return [judge.table_path(self.shop, kind, f"shop.{table}") for kind in ("history", "current")]

    def keep(self, table: str) -> None:
        """A copy of both tables as they are now, in place of an older one."""
        for folder in self.folders(table):
            shutil.copytree(folder, self._copy(folder), dirs_exist_ok=False)

    def put_back(self, table: str, *kinds: str) -> None:
        """What was kept, in place of the newest, which lies beside it."""
        for folder in self.folders(table):
            if folder.parent.parent.name in kinds:
                folder.rename(folder.with_name(f"{folder.name}.newest"))
                shutil.copytree(self._copy(folder), folder)
        self.forget()

    def bring_newest(self, table: str) -> None:
        for folder in self.folders(table):
            newest = folder.with_name(f"{folder.name}.newest")
            if newest.exists():
                shutil.rmtree(folder)
                newest.rename(folder)
        self.forget()

    def forget(self) -> None:
        """A driver of another run has no memory of the tables."""
        self.shop.spark()._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def sql(self, kind: str, table: str, statement: str) -> None:
        uri = judge.table_uri(self.shop, kind, f"shop.{table}")
        self.shop.spark().sql(statement.format(f"delta.{spark_identifier(uri)}"))

    def _copy(self, folder: Path) -> Path:
        return self.kept / folder.parent.parent.name / folder.name


@pytest.fixture
def shop(new_environment: Callable[..., Environment]) -> Environment:
    shop = new_environment("ways", (TableRule("shop.*"),), {"park_after": 1})
    shop.execute("CREATE SCHEMA shop")
    names = [f"{name}{which}" for name in IN_PAIRS for which in ("", "_anew")]
    for name in (*names, "inside", "retyped", "shaped", "constrained"):
        shop.execute(f"CREATE TABLE shop.{name} (id int PRIMARY KEY, size int, note text)")
    shop.execute("CREATE TABLE shop.dated (at timestamptz PRIMARY KEY, note text)")
    shop.run()
    for name in (*names, "inside", "retyped", "shaped", "constrained"):
        shop.execute(f"INSERT INTO shop.{name} SELECT i, i, 'row ' || i FROM generate_series(1, 5) AS i")
    shop.execute("INSERT INTO shop.dated VALUES ('2026-01-01', 'fits')")
    shop.run()
    assert judge.wrongs(shop) == []
    return shop


def staged_files(shop: Environment, table: str) -> list[Path]:
    """Those of the newest batch."""
    generation = Path(shop.config.lake) / shop.config.pipeline / "staging" / "g1"
    batch = max((path for path in generation.iterdir() if path.is_dir()), key=lambda path: path.name)
    return [file for file in batch.rglob("*.parquet") if file.parent.name == f"shop.{table}"]


@pytest.mark.walks(
    "HistoryBehindCurrent",
    "PositionBelowPlan",
    "PositionInsideBatch",
    "TargetDiffers",
    "SchemaNotFollowed",
    "SchemaVersionsDiffer",
    "KeyValueUnfit",
    "KeyValueMissing",
    "StagedFileGone",
    "StagedFileDiffers",
    "LocationTaken",
    "MergeFailed",
)
def test_every_way_out_of_a_park_ends_with_the_tables_equal(shop: Environment, told: Told) -> None:
    lake = Lake(shop)
    asking = (TableRule(f"shop.{name}", evolve="ask") for name in ("retyped", "shaped"))
    shop.config = replace(shop.config, tables=(*shop.config.tables, *asking))
    at_first = positions(shop)
    for which in ("", "_anew"):
        lake.keep(f"older{which}")
        lake.keep(f"removed{which}")
        for name in ("older", "removed"):
            shop.execute(f"UPDATE shop.{name}{which} SET note = 'newer' WHERE id = 1")
    shop.run()

    # What somebody does to the lake.
    as_made = judge.delta_versions(shop)["current/shop/widened_there"]
    for which in ("", "_anew"):
        lake.put_back(f"older{which}", "history", "current")
        # The ledger is an older copy too, or the plan would begin above.
        lake.put_back(f"removed{which}", "history")
        restore(shop, f"shop.removed{which}", at_first[f"shop.removed{which}"])
        widening = "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
        for statement in (widening, "ALTER TABLE {} ALTER COLUMN size TYPE BIGINT"):
            lake.sql("current", f"widened_there{which}", statement)
    lake.sql("current", "constrained", "ALTER TABLE {} ADD CONSTRAINT small CHECK (size < 100)")
    shop.execute("CREATE TABLE shop.taken (id int PRIMARY KEY, note text)")
    theirs = judge.table_path(shop, "current", "shop.taken") / "theirs.parquet"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"somebody's")

    # What somebody does at the source.
    shop.execute("CREATE TABLE shop.nulled (id int, note text)", "INSERT INTO shop.nulled VALUES (NULL, 'has no key')")
    shop.execute("ALTER TABLE shop.nulled ADD CONSTRAINT there NOT NULL id NOT VALID")
    shop.execute("CREATE UNIQUE INDEX nulled_id ON shop.nulled (id)")
    shop.execute("ALTER TABLE shop.nulled REPLICA IDENTITY USING INDEX nulled_id")
    shop.preflight()
    shop.execute("INSERT INTO shop.taken VALUES (1, 'a row')")
    shop.execute("ALTER TABLE shop.retyped ALTER COLUMN size TYPE text USING 'size ' || size")
    shop.execute("INSERT INTO shop.dated VALUES ('infinity', 'does not')")
    shop.execute("UPDATE shop.nulled SET id = 1")
    shop.execute("UPDATE shop.shaped SET size = 7 WHERE id = 1")
    changed = [f"{name}{which}" for name in IN_PAIRS for which in ("", "_anew")]
    for name in (*changed, "inside", "retyped"):
        shop.execute(f"UPDATE shop.{name} SET note = 'changed' WHERE id = 2")
    shop.execute("INSERT INTO shop.constrained VALUES (1000, 1000, 'large')")
    shop.begin_run()
    shop.drain()
    aside = {}
    for name in ("gone", "gone_anew", "changed", "changed_anew"):
        for file in staged_files(shop, name):
            aside[file] = file.read_bytes()
            if name.startswith("gone"):
                file.unlink()
            else:
                file.write_bytes(aside[file] + b"one more")
    for folder in lake.folders("inside"):
        _move_the_position(folder, shop.registered()[-1].start_lsn + 8)
    lake.forget()
    shop.execute("ALTER TABLE shop.shaped ALTER COLUMN size TYPE text")
    shop.execute("UPDATE shop.shaped SET size = 'eight' WHERE id = 1")
    shop.begin_run()
    shop.drain()
    shop.merge()
    shop.confirm()
    errors = parked(shop)
    kinds = {table: error.kind for table, error in errors.items()}
    assert kinds == {
        "removed": "HistoryBehindCurrent",
        "removed_anew": "HistoryBehindCurrent",
        "older": "PositionBelowPlan",
        "older_anew": "PositionBelowPlan",
        "widened_there": "TargetDiffers",
        "widened_there_anew": "TargetDiffers",
        "gone": "StagedFileGone",
        "gone_anew": "StagedFileGone",
        "changed": "StagedFileDiffers",
        "changed_anew": "StagedFileDiffers",
        "inside": "PositionInsideBatch",
        "retyped": "SchemaNotFollowed",
        "shaped": "SchemaNotFollowed",
        "dated": "KeyValueUnfit",
        "nulled": "KeyValueMissing",
        "taken": "LocationTaken",
        "constrained": "MergeFailed",
    }

    # "Put its newest files back and unpark the table", and so on: the first way of each pair.
    told.parked(errors["removed"], "HistoryBehindCurrent", "Put history's newest files back and unpark the table")
    lake.bring_newest("removed")
    told.parked(errors["older"], "PositionBelowPlan", "Put its newest files back and unpark the table")
    lake.bring_newest("older")
    told.parked(errors["widened_there"], "TargetDiffers", "Undo what was done to the Delta table's columns by hand")
    lake.sql("current", "widened_there", f"RESTORE TABLE {{}} TO VERSION AS OF {as_made}")
    told.parked(errors["gone"], "StagedFileGone", "Bring the staging folder back", "and unpark the table")
    told.parked(errors["changed"], "StagedFileDiffers", "Bring the file back as it was", "and unpark the table")
    for file, content in aside.items():
        if file.parent.name in ("shop.gone", "shop.changed"):
            file.write_bytes(content)
    told.parked(errors["taken"], "LocationTaken", "have them moved away; then unpark the table")
    theirs.unlink()
    told.parked(errors["constrained"], "MergeFailed", "a usual cause is a constraint", "The next run tries again")
    lake.sql("current", "constrained", "ALTER TABLE {} DROP CONSTRAINT small")
    lake.forget()
    for name in (*IN_PAIRS, "taken", "constrained"):
        follow(shop, ways(shop, name)[0])

    # Begun anew, all others.
    told.parked(errors["inside"], "PositionInsideBatch")
    told.parked(errors["retyped"], "SchemaNotFollowed", "Write `evolve: follow` for the table in the pipeline file")
    told.parked(errors["dated"], "KeyValueUnfit", "`target: {column: text}` in the pipeline file")
    told.parked(errors["nulled"], "KeyValueMissing", "validate the constraint (`ALTER TABLE … VALIDATE CONSTRAINT …`)")
    shop.execute("ALTER TABLE shop.nulled VALIDATE CONSTRAINT there")
    as_text = TableRule("shop.dated", target={"at": "text"})
    shop.config = replace(shop.config, tables=(*shop.config.tables, as_text))
    # Un-parked with its tables as they are, and told to go on, what is staged of it has two shapes.
    for _ in ("its shape", "asked for"):
        follow(shop, "tidemark unpark x shop.shaped; let a run of ways_capture end")
    told.parked(parked(shop)["shaped"], "SchemaVersionsDiffer", "To go on with the new shape")
    for name in ("inside", "retyped", "dated", "nulled", "shaped", *(f"{name}_anew" for name in IN_PAIRS)):
        follow(shop, ways(shop, name)[-1])
    for folder in Path(shop.config.lake).rglob("*.newest"):
        shutil.rmtree(folder)
    assert parked(shop) == {}
    ends_equal(shop)


def _move_the_position(folder: Path, to: int) -> None:
    """As if the table had been written from another installation's staging."""
    for commit in (folder / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in commit.read_text().splitlines()]
        for line in lines:
            if "txn" in line:
                line["txn"]["version"] = to
        commit.write_text("\n".join(map(json.dumps, lines)) + "\n")
    for checksum in (folder / "_delta_log").glob("*.crc"):
        checksum.unlink()


@pytest.mark.walks("DefinitionFrozen", "DefinitionUndecided")
def test_a_definition_that_waits_for_somebody_is_followed_as_the_error_says(
    new_environment: Callable[..., Environment], told: Told
) -> None:
    asked = TableRule("shop.asked", evolve="ask")
    shop = new_environment("waiting", (TableRule("shop.frozen", evolve="freeze"), asked))
    shop.execute("CREATE SCHEMA shop")
    for name in ("frozen", "asked"):
        shop.execute(f"CREATE TABLE shop.{name} (id int PRIMARY KEY)")
    shop.run()
    shop.execute("INSERT INTO shop.frozen VALUES (1)", "INSERT INTO shop.asked VALUES (1)")
    shop.run()
    for name in ("frozen", "asked"):
        shop.execute(f"ALTER TABLE shop.{name} ADD COLUMN more int", f"INSERT INTO shop.{name} VALUES (2, 2)")
    shop.run()
    told.parked(parked(shop)["frozen"], "DefinitionFrozen", "write `evolve: follow` for the table in the pipeline file")
    told.parked(parked(shop)["asked"], "DefinitionUndecided", "To follow the change, unpark the table")
    shop.config = replace(shop.config, tables=(TableRule("shop.frozen", evolve="follow"), asked))
    follow(shop, ways(shop, "asked")[0])
    shop.run()
    assert parked(shop) == {}
    ends_equal(shop)


@pytest.mark.walks("SchemaNotFollowed")
def test_a_name_that_is_taken_back_needs_nobody_to_unpark_its_table(
    new_environment: Callable[..., Environment], told: Told
) -> None:
    shop = new_environment("names", (TableRule("shop.*"),))
    shop.execute("CREATE SCHEMA shop", "CREATE TABLE shop.item (id int PRIMARY KEY, size int)")
    shop.run()
    shop.execute("INSERT INTO shop.item SELECT i, i FROM generate_series(1, 5) AS i")
    shop.run()
    shop.execute("ALTER TABLE shop.item ADD _commit_lsn int", "UPDATE shop.item SET _commit_lsn = 10 WHERE id = 1")
    shop.run()
    told.parked(parked(shop)["item"], "SchemaNotFollowed", "names that Tidemark uses itself, rename them at the source")
    shop.execute("ALTER TABLE shop.item RENAME _commit_lsn TO lsn", "UPDATE shop.item SET size = 30 WHERE id = 3")
    shop.run()
    shop.run()
    assert shop.table_row("shop.item~2").life.needs_backfill
    shop.backfill("shop.item~2")
    ends_equal(shop)
