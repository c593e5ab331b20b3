"""The first look at a database and a lake in which there is nothing yet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support.pipeline import Pipeline
from tidemark.capture.preflight.table_findings import NO_TABLE_YET


def test_a_database_without_a_table_is_waited_for(pipeline: Pipeline) -> None:
    for act in (False, True):
        report = pipeline.sound(act=act)
        (finding,) = [one for one in report.findings if one.check == NO_TABLE_YET]
        assert finding.severity == "warning"
    slot = pipeline.config.slot
    assert pipeline.one(f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}'") == 0
    assert pipeline.generation() is None
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    assert [one for one in pipeline.sound().findings if one.check == NO_TABLE_YET] == []
    pipeline.execute("INSERT INTO orders VALUES (2)")
    assert pipeline.drain().rows == 1


def test_a_database_whose_tables_the_file_does_not_name_is_an_error(pipeline: Pipeline) -> None:
    pipeline.execute("CREATE SCHEMA other", "CREATE TABLE other.orders (id int PRIMARY KEY)")
    assert "None of the tables that the file names can be captured" in str(pipeline.preflight(act=False))


def test_a_look_leaves_no_folder_in_the_lake(pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    lake = tmp_path / "data" / "lake"
    pipeline.config = replace(pipeline.config, lake=str(lake))
    pipeline.sound(act=False)
    assert not lake.parent.exists()
    lake.mkdir(parents=True)
    (lake / "others").touch()
    pipeline.sound(act=False)
    assert [path.name for path in lake.iterdir()] == ["others"]
