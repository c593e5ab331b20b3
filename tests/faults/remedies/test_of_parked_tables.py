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

from tests.support.capture import Environment
from tests.support.remedies import Told, ends_equal
from tidemark.capture.by_hand import unpark
from tidemark.capture.parked import ways_on
from tidemark.config import TableRule
from tidemark.formats.error_record import ErrorRecord

pytestmark = pytest.mark.thorough

STEP = re.compile(
    r"tidemark unpark \S+ (?P<unpark>\S+?)(?P<anew> --anew)?(?=;|$)"
    r"|(?P<run>let a run of \w+_capture end)"
    r"|airflow dags trigger \w+_backfill --conf '(?P<backfill>[^']+)'"
)


def parked(shop: Environment) -> dict[str, ErrorRecord]:
    return {
        name.removeprefix("shop."): row.error
        for name, row in shop.table_rows().items()
        if row.life.is_parked and row.error is not None
    }


def ways(shop: Environment, table: str) -> list[str]:
    return ways_on(shop.config, f"shop.{table}", parked(shop)[table])


def follow(shop: Environment, way: str) -> None:
    """The two folders of "once A and B are removed", then each command."""
    for folder in re.findall(rf"{shop.config.pipeline}/(?:history|current)/\S+", way.partition("are removed")[0]):
        shutil.rmtree(Path(shop.config.lake) / folder, ignore_errors=True)
    steps = list(STEP.finditer(way))
    assert steps, way
    for step in steps:
        if step["unpark"]:
            sentence, done = unpark(shop.config, step["unpark"], ledger=shop.ledger, anew=bool(step["anew"]))
            assert done, sentence
        elif step["run"]:
            shop.run()
        else:
            shop.backfill(*json.loads(step["backfill"])["tables"])


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
