"""A folder of jars -> those that a driver needs for its lake."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.spark_submit import spark_jars


@pytest.mark.parametrize(
    ("lake", "expected"),
    [
        ("/lake", ["delta.jar", "tidemark-log-store.jar"]),
        ("file:///lake", ["delta.jar", "tidemark-log-store.jar"]),
        ("hdfs://host/lake", ["delta.jar"]),
        ("s3a://bucket/lake", ["delta.jar", "hadoop-aws.jar", "tidemark-log-store.jar"]),
        ("gs://bucket/lake", ["delta.jar", "hadoop-gcp.jar"]),
        ("abfss://lake@store.dfs.core.windows.net/lake", ["delta.jar", "hadoop-azure.jar"]),
    ],
)
def test_a_driver_gets_what_its_store_needs_and_of_no_other(tmp_path: Path, lake: str, expected: list[str]) -> None:
    for file in ("delta.jar", "s3a/hadoop-aws.jar", "gcs/hadoop-gcp.jar", "abfs/hadoop-azure.jar"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    jars = spark_jars.jars(lake, {spark_jars.JARS_VARIABLE: str(tmp_path)}, {})
    assert jars is not None
    assert sorted(Path(jar).name for jar in jars.split(",")) == sorted(expected)


@pytest.mark.parametrize("lake", ["/lake", "s3a://bucket/lake"])
@pytest.mark.parametrize("way", ["spark.conf", "spark-defaults.conf", "both", "neither"])
def test_jars_that_spark_has_by_a_setting_go_on_beside_the_log_store(tmp_path: Path, lake: str, way: str) -> None:
    """A `--jars` takes the place of `spark.jars`."""
    if way in ("spark-defaults.conf", "both"):
        (tmp_path / "spark-defaults.conf").write_text("spark.jars /opt/delta.jar,/opt/other.jar\n")
    conf = {"spark.jars": "/opt/own.jar, https://jars/b.jar"} if way in ("spark.conf", "both") else {}
    jars = spark_jars.jars(lake, {"SPARK_CONF_DIR": str(tmp_path), "SPARK_HOME": str(tmp_path)}, conf)
    expected = {
        "spark-defaults.conf": ["/opt/delta.jar", "/opt/other.jar"],
        "neither": [],
    }
    assert jars is not None
    *others, log_store = jars.split(",")
    assert others == expected.get(way, ["/opt/own.jar", "https://jars/b.jar"])
    assert Path(log_store).is_file()
    assert Path(log_store).name == spark_jars.LOG_STORE


def test_the_variable_comes_before_what_spark_has_by_a_setting(tmp_path: Path) -> None:
    jars = spark_jars.jars("/lake", {spark_jars.JARS_VARIABLE: "/a.jar"}, {"spark.jars": "/b.jar"})
    assert jars is not None
    assert jars.split(",")[:-1] == ["/a.jar"]
