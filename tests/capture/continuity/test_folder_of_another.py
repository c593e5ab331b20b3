"""Two pipelines of one name, each with a ledger of its own, as two installations of Airflow have them, in one lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from threading import Barrier

import pytest

from tests.support.pipeline import Pipeline
from tests.support.remedies import Told
from tidemark.capture.continuity import discontinuity
from tidemark.errors import LakeTaken
from tidemark.formats import layout
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
def second_of(new_database: Callable[..., str], migrated_ledger: str) -> Iterator[Callable[[Pipeline], Pipeline]]:
    """A function to a copy of a pipeline's file for another database of the server."""
    made: list[Pipeline] = []

    def make(first: Pipeline) -> Pipeline:
        names = {name: f"{getattr(first.config, name)}_copy_{len(made)}" for name in ("slot", "publication")}
        config = replace(first.config, **names)
        pipeline = Pipeline(config, new_database("source"), new_database("ledger", like=migrated_ledger))
        pipeline.execute("CREATE TABLE item (id int PRIMARY KEY)")
        made.append(pipeline)
        return pipeline

    yield make
    for pipeline in made:
        pipeline.close()


@pytest.fixture
def second(first: Pipeline, second_of: Callable[[Pipeline], Pipeline]) -> Pipeline:
    return second_of(first)


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
    (error,) = second.preflight(says=["adopt_slot"]).errors
    assert "the one of that number in the ledger" in str(error), "its word does not make the other's batches its own"
    second.config = replace(second.config, lake=f"{tmp_path}/another")
    second.drain()
    assert [row["id"] for row in second.staged("public.item")] == [2, 3]


def test_the_one_whose_folder_it_is_may_say_so(first: Pipeline) -> None:
    """With a ledger that was lost, and a slot of another name beside the one that it had."""
    first.ledger_query("DROP SCHEMA tidemark CASCADE")
    migrate(first.ledger)
    first.config = replace(first.config, slot=f"{first.config.slot}_second")
    (error,) = first.preflight().errors
    assert "which is still there" in str(error)
    (error,) = first.preflight(says=["adopt_slot"]).errors
    assert "The changes in between are gone" in str(error)  # told once: its slot is a new one
    first.sound()
    first.drain()


@pytest.mark.parametrize("left", [None, "lost.parquet"], ids=["", "and died when it opened one more"])
def test_the_first_one_stops_where_a_second_one_went_on_in_its_folder(
    left: str | None, first: Pipeline, second: Pipeline
) -> None:
    second.preflight(says=["adopt_slot"])
    if left:
        begun = Path(first.config.lake) / layout.generation_folder(first.config.pipeline, 3)
        begun.mkdir()
        (begun / left).touch()
    first.execute("INSERT INTO item VALUES (2)")
    with pytest.raises(LakeTaken, match="its generation 2 was opened"):
        first.drain()


def test_of_two_that_open_their_first_generation_at_the_same_moment_one_does(
    captured: Pipeline, second_of: Callable[[Pipeline], Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have looked, and the folder was empty."""
    captured.execute("CREATE TABLE item (id int PRIMARY KEY)")
    captured.begin()
    other = second_of(captured)
    other.begin()
    opens = discontinuity.utc_now

    def while_the_other_one_opens() -> datetime:
        monkeypatch.undo()
        other.settle()
        return opens()

    monkeypatch.setattr(discontinuity, "utc_now", while_the_other_one_opens)
    with pytest.raises(LakeTaken, match=f'generation 1 was opened from the slot "{other.config.slot}" at the same'):
        captured.settle()
    assert captured.generation() is None
    assert captured.store.list(f"{captured.config.pipeline}/staging") == ["g1"]
    with pytest.raises(LakeTaken, match="which is still there"):
        captured.drain()
    other.drain()


@pytest.mark.parametrize("name", ["", ".generation.json.0123"])
def test_a_folder_in_which_nothing_is_yet_takes_no_number(captured: Pipeline, name: str) -> None:
    """Another ledger opens the generation at this moment, or an attempt died. If the number was passed over, both would
    open one."""
    folder = Path(captured.config.lake) / layout.generation_folder(captured.config.pipeline, 1)
    folder.mkdir(parents=True)
    if name:
        (folder / name).touch()
    captured.execute("CREATE TABLE item (id int PRIMARY KEY)")
    captured.begin()
    captured.drain()
    generation = captured.generation()
    assert generation is not None
    assert generation.number == 1


def test_of_many_that_begin_at_once_one_goes_on(captured: Pipeline, second_of: Callable[[Pipeline], Pipeline]) -> None:
    captured.execute("CREATE TABLE item (id int PRIMARY KEY)")
    all_of_them = [captured, *(second_of(captured) for _ in range(3))]
    for one in all_of_them:
        one.begin()
    start = Barrier(len(all_of_them))

    def begin(one: Pipeline) -> bool:
        start.wait()
        with suppress(LakeTaken):
            one.drain()
        return one.generation() is not None

    with ThreadPoolExecutor(len(all_of_them)) as threads:
        assert sorted(threads.map(begin, all_of_them)) == [False, False, False, True]
    assert captured.store.list(f"{captured.config.pipeline}/staging") == ["g1"]
