"""Two pipelines of one name, each with a ledger of its own, as two installations of Airflow have them, in one lake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.pipeline import Pipeline
from tests.support.remedies import Told
from tidemark.errors import LakeTaken
from tidemark.ledger.migrations import migrate

REMEDY = "give this one a name or a `lake` of its own"


@pytest.fixture
def first(captured: Pipeline) -> Pipeline:
    """It has staged a batch."""
    captured.execute("CREATE TABLE item (id int PRIMARY KEY)")
    captured.capture()
    captured.execute("INSERT INTO item VALUES (1)")
    captured.drain()
    return captured


@pytest.fixture
def second(first: Pipeline, new_database: Callable[..., str], migrated_ledger: str) -> Pipeline:
    """A copy of its file for another database of the server."""
    names = {"slot": f"{first.config.slot}_second", "publication": f"{first.config.publication}_second"}
    config = replace(first.config, **names)
    pipeline = Pipeline(config, new_database("source"), new_database("ledger", like=migrated_ledger))
    pipeline.execute("CREATE TABLE item (id int PRIMARY KEY)")
    return pipeline


def slots_of(pipeline: Pipeline) -> list[str]:
    return [name for (name,) in pipeline.query("SELECT slot_name FROM pg_replication_slots ORDER BY 1")]


@pytest.mark.walks("LakeTaken")
def test_one_with_a_new_ledger_takes_nothing_for_its_own(first: Pipeline, second: Pipeline, told: Told) -> None:
    """Its slot would begin below what the first one staged, and a drain pass over what lies between."""
    before = slots_of(second)
    (error,) = second.preflight().errors
    evidence = f'its generation 1 was opened from the slot "{first.config.slot}", which is still there'
    told.read("LakeTaken", str(error), evidence, REMEDY)
    assert slots_of(second) == before, "nothing would read the slot"
    second.config = replace(second.config, pipeline="of_its_own")
    second.sound()
    second.execute("INSERT INTO item VALUES (2)")
    second.drain()
    assert [row["id"] for row in second.staged("public.item")] == [2]
    second.close()


def test_one_that_comes_from_another_lake_takes_no_positions_for_its_own(
    first: Pipeline, second: Pipeline, tmp_path: Path
) -> None:
    """Both are in their first generation, and their tables' positions differ in nothing but their values."""
    of_first = second.config.lake
    second.config = replace(second.config, lake=f"{tmp_path}/another")
    second.sound()
    second.execute("INSERT INTO item VALUES (2)")
    second.drain()
    second.config = replace(second.config, lake=of_first)
    second.execute("INSERT INTO item VALUES (3)")
    with pytest.raises(LakeTaken, match="the one of that number in the ledger"):
        second.drain()
    (error,) = second.preflight(adopt_slot=True).errors
    assert "the one of that number in the ledger" in str(error), "its word does not make the other's batches its own"
    second.config = replace(second.config, lake=f"{tmp_path}/another")
    second.drain()
    assert [row["id"] for row in second.staged("public.item")] == [2, 3]
    second.close()


def test_the_one_whose_folder_it_is_may_say_so(first: Pipeline) -> None:
    """With a ledger that was lost, and a slot of another name beside the one that it had."""
    first.ledger_query("DROP SCHEMA tidemark CASCADE")
    migrate(first.ledger)
    first.config = replace(first.config, slot=f"{first.config.slot}_second")
    (error,) = first.preflight().errors
    assert "which is still there" in str(error)
    (error,) = first.preflight(adopt_slot=True).errors
    assert "The changes in between are gone" in str(error)  # told once: its slot is a new one
    first.sound()
    first.drain()


def test_the_first_one_stops_where_a_second_one_went_on_in_its_folder(first: Pipeline, second: Pipeline) -> None:
    second.preflight(adopt_slot=True)
    first.execute("INSERT INTO item VALUES (2)")
    with pytest.raises(LakeTaken, match="its generation 2 was opened"):
        first.drain()
    second.close()
