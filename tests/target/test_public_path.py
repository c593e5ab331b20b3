"""Tables that are written by Delta's public API alone, since Spark's Delta is not the known one."""

from __future__ import annotations

import json

import pytest
from msgspec import structs
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions import captured
from pyspark.errors.exceptions.captured import UnknownException
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from tests.support.merge_ways import take_the_public_path
from tests.support.remedies import Told
from tests.target.lake import TEXTS, Lake, StagedTable, table_schema
from tests.target.test_replay import asked
from tests.target.test_values import delete, insert, move, update
from tidemark.errors import SparkUnsupported
from tidemark.schema.table import Column
from tidemark.spark_submit.delta_version import DeltaVersion
from tidemark.target.delta import delta_tables, internals, log_files, public_path, session
from tidemark.target.delta.log_files import LoggedVersion

BATCHES = [[insert(1, body="long"), insert(2)], [move(1, 4, "body", n=2), delete(2), insert(5)]]


@pytest.fixture
def table(lake: Lake) -> StagedTable:
    staged = lake.table(table_schema("t", TEXTS))
    for batch in BATCHES:
        staged.stage(batch)
    return staged


def test_this_spark_has_all_that_is_called(spark: SparkSession) -> None:
    assert list(internals._missing(spark.sparkContext, internals.SHAPES)) == []


def test_what_another_delta_lacks_is_named(spark: SparkSession) -> None:
    wanted = {
        "org.apache.spark.sql.delta.DeltaOperations$Write": ["(org.apache.spark.sql.SaveMode,scala.Option)"],
        "org.apache.spark.sql.delta.Snapshot": ["version()", "versions(int)"],
        "org.apache.spark.sql.delta.Nothing": ["nothing()"],
    }
    missing = list(internals._missing(spark.sparkContext, wanted))
    assert missing == ["DeltaOperations$Write of 2 parameters", "Snapshot.versions of 1 parameters", "class Nothing"]


def test_a_table_is_merged_by_it_and_its_result_says_so(
    lake: Lake, table: StagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One merge by each: whoever comes next goes on from the same positions."""
    with monkeypatch.context() as patched:
        take_the_public_path(patched)
        (first,) = lake.applied(table.planned(0, 1))
    assert "its public path is taken" in first.why["changes"]
    lake.applied(table.planned(1))
    assert [row["id"] for row in lake.current(table)] == [4, 5]
    assert [(op, row["id"]) for op, row in lake.history(table)] == [
        *(("insert", 1), ("insert", 2)),
        *(("delete", 1), ("insert", 4), ("delete", 2), ("insert", 5)),
    ]
    with monkeypatch.context() as patched:
        take_the_public_path(patched)
        versions = [lake.version(step, table) for step in ("history", "current")]
        (again,) = lake.applied(table.planned())
    assert again.history_lsn == again.current_lsn == table.batches[-1].end_lsn
    assert [lake.version(step, table) for step in ("history", "current")] == versions


def test_it_creates_a_table_as_a_known_delta_does(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = StructType(
        [
            StructField("id", IntegerType(), False, {"tidemark.column": {"relation": 1, "attnum": 1}}),
            StructField("a name", StringType(), True, {"comment": "of the source"}),
        ]
    )
    properties = {"delta.enableDeletionVectors": "true", "delta.dataSkippingStatsColumns": "`id`"}
    made = []
    one_session = session.table_session(lake.spark, pool="test", lake=lake.uri)
    for way in ("known", "public"):
        with monkeypatch.context() as patched:
            if way == "public":
                take_the_public_path(patched)
            path = f"{lake.uri}/{way}"
            delta_tables.create(one_session, delta_tables.pin(one_session, path), shape, properties)
            with pytest.raises(Exception) as raised:  # noqa: PT011
                delta_tables.create(
                    one_session,
                    delta_tables.PinnedTable(path, -1, LoggedVersion(one_session, path, -1)),
                    shape,
                    properties,
                )
            assert delta_tables.is_contested(raised.value)
        made.append(delta_tables.pin(one_session, path))
    known, public = (
        [
            (f.name, f.dataType, f.nullable, {k: v for k, v in f.metadata.items() if not k.startswith("delta.")})
            for f in table.schema().fields
        ]
        for table in made
    )
    assert known == public == [(f.name, f.dataType, f.nullable, f.metadata) for f in shape.fields]
    assert set(properties.items()) <= set(made[1].properties.items())
    assert made[0].is_mapped
    assert made[1].is_mapped


def test_a_conflict_is_known_without_deltas_python_classes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta 4.0's package lacks them; Py4J's error comes instead."""
    one_session = session.table_session(lake.spark, pool="test", lake=lake.uri)
    nothing = delta_tables.pin(one_session, f"{lake.uri}/t")
    shape = StructType([StructField("id", IntegerType())])
    delta_tables.create(one_session, nothing, shape, {})
    monkeypatch.setattr(captured, "convert_exception", lambda thrown: UnknownException(origin=thrown))
    with pytest.raises(Py4JJavaError) as raised:
        delta_tables.create(one_session, nothing, shape, {})
    assert delta_tables.is_contested(raised.value)


@pytest.mark.thorough
def test_a_batch_without_a_row_moves_both_positions(
    lake: Lake, table: StagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_the_public_path(monkeypatch)
    table.stage()
    (result,) = lake.applied(table.planned())
    assert result.history_lsn == result.current_lsn == table.batches[-1].end_lsn
    table.stage()
    (result,) = lake.applied(table.planned(3))
    assert result.history_lsn == result.current_lsn == table.batches[-1].end_lsn


CHECKPOINTS = {
    "none": ({}, {}),
    "one file": ({"delta.checkpointInterval": "3"}, {}),
    "in parts": ({"delta.checkpointInterval": "3"}, {"spark.databricks.delta.checkpoint.partSize": "2"}),
    "of the second version": ({"delta.checkpointInterval": "3", "delta.checkpointPolicy": "v2"}, {}),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_the_log_says_what_delta_says_of_it(kind: str, lake: Lake, table: StagedTable) -> None:
    properties, settings = CHECKPOINTS[kind]
    lake.applied(table.planned(0, 1))
    one_session = session.table_session(lake.spark, pool="test", lake=lake.uri)
    for name, value in settings.items():
        one_session.conf.set(name, value)
    path = lake.path("history", table)
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in {**properties, "mine": "1\u2028\x85"}.items())
    one_session.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({listed})")
    for number in range(7):
        with public_path.transaction(one_session, f"other-{number % 2}", number):
            one_session.read.format("delta").load(path).limit(1).write.format("delta").mode("append").save(path)
    logs = list((lake.folder("history", table) / "_delta_log").glob("*.checkpoint*"))
    assert bool(logs) == (kind != "none")
    said, known = log_files.newest(one_session, path), internals.newest(one_session, path)
    assert said.version == known.version
    assert json.loads(said.schema) == json.loads(known.schema)
    assert said.metadata["configuration"] == known.metadata["configuration"]
    assert said.files == known.files
    assert said.position("other-0") == known.position("other-0") == 6
    assert said.position("other-1") == known.position("other-1") == 5
    application = lake.plan(table.planned()).application_id(table.id, "history")
    assert said.position(application) == known.position(application) == table.batches[0].end_lsn


@pytest.mark.thorough
def test_a_default_is_given_once_though_the_driver_dies_before_it_gave_it(
    lake: Lake, table: StagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_the_public_path(monkeypatch)
    lake.applied(table.planned(0, 1))
    columns = (*table.schema.columns, Column("c0", "int", 25, -1, "int", missing="7"))
    table.schema = structs.replace(table.schema, version=2, columns=columns, published=())
    table.stage([insert(6, c0=None)])
    with monkeypatch.context() as patched:

        def die(*_: object) -> None:
            raise InterruptedError

        patched.setattr(public_path, "update_once", die)
        assert lake.apply(table.planned(1)).tables[0].error is not None
    lake.applied(table.planned(1))
    assert {row["id"]: row["c0"] for row in lake.current(table)} == {4: 7, 5: 7, 6: None}
    table.stage([update(4, c0=None)])
    lake.applied(table.planned(3))
    assert {row["id"]: row["c0"] for row in lake.current(table)} == {4: None, 5: 7, 6: None}


@pytest.mark.walks("NeedsDeltaInternals")
@pytest.mark.thorough
def test_what_needs_a_pinned_version_is_refused_and_done_by_a_known_delta(
    lake: Lake, table: StagedTable, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    lake.applied(table.planned())
    before = lake.version("current", table)
    with monkeypatch.context() as patched:
        take_the_public_path(patched)
        (refused,) = asked(lake, "rebuild", table)
        told.parked(refused.error, "NeedsDeltaInternals", "Run it once by a Spark with the Delta that `tidemark jars`")
    assert lake.version("current", table) == before
    assert asked(lake, "rebuild", table)[0].error is None


@pytest.mark.walks("SparkUnsupported")
def test_a_delta_that_is_made_for_another_spark_is_refused_with_both_numbers(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(session, "delta_version", lambda jars: DeltaVersion("4.4.0", "3.9"))
        with told(
            SparkUnsupported, "Delta 4.4.0 is made for Spark 3.9, and this is Spark 4.", "Install the pyspark of one"
        ):
            session._require_delta(spark)
    session._require_delta(spark)


def test_a_path_without_a_table_is_none(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    take_the_public_path(monkeypatch)
    nowhere = delta_tables.pin(lake.spark, f"{lake.uri}/nowhere")
    assert isinstance(nowhere.state, LoggedVersion)
    assert (nowhere.exists, nowhere.files, nowhere.position("any")) == (False, 0, None)
