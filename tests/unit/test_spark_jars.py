"""A folder of jars -> those that a driver needs for its lake."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark import spark_jars


@pytest.mark.parametrize(
    ("lake", "expected"),
    [
        ("/lake", ["delta.jar"]),
        ("s3a://bucket/lake", ["delta.jar", "hadoop-aws.jar", "tidemark-log-store.jar"]),
        ("gs://bucket/lake", ["delta.jar", "hadoop-gcp.jar"]),
        ("abfss://lake@store.dfs.core.windows.net/lake", ["delta.jar", "hadoop-azure.jar"]),
    ],
)
def test_a_driver_gets_what_its_store_needs_and_of_no_other(tmp_path: Path, lake: str, expected: list[str]) -> None:
    for file in ("delta.jar", "s3a/hadoop-aws.jar", "gcs/hadoop-gcp.jar", "abfs/hadoop-azure.jar"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    jars = spark_jars.jars(lake, {spark_jars.JARS_VARIABLE: str(tmp_path)})
    assert jars is not None
    assert sorted(Path(jar).name for jar in jars.split(",")) == sorted(expected)
