"""The lake's log store and the Spark master, judged from config and arguments alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.capture.lake_and_spark import log_store_findings, spark_findings
from tidemark.config import PipelineConfig, TableRule

CONFIG = PipelineConfig("shop", "s", "slot", "pub", True, (TableRule("shop.*"),), "/lake", "l")
DYNAMODB = "io.delta.storage.S3DynamoDBLogStore"


@pytest.mark.parametrize(
    ("lake", "conf", "severities"),
    [
        ("/lake", {}, []),
        ("gs://bucket/lake", {}, []),
        ("abfss://c@a.dfs.core.windows.net/lake", {}, []),
        ("s3a://bucket/lake", {}, []),
        ("s3a://bucket/lake", {"spark.delta.logStore.s3a.impl": DYNAMODB}, []),
        ("s3a://bucket/lake", {"spark.delta.logStore.class": DYNAMODB}, ["error"]),
        ("s3a://bucket/lake", {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3SingleDriverLogStore"}, ["error"]),
        ("ftp://host/lake", {}, ["warning"]),
    ],
)
def test_a_log_store_that_does_not_fence_drivers_is_refused(
    lake: str, conf: dict[str, str], severities: list[str]
) -> None:
    findings = list(log_store_findings(replace(CONFIG, lake=lake, spark_conf=conf)))
    assert [f.severity for f in findings] == severities


@pytest.mark.parametrize(
    ("master", "severities"),
    [
        (None, []),
        ("local", []),
        ("local[*]", []),
        ("local[2]", []),
        ("yarn", ["error"]),
        ("spark://local[*]", ["error"]),
        ("spark://", ["error"]),
        ("spark://master", ["error"]),
        ("spark://master:7077", ["warning"]),
        ("k8s://https://host:443", ["warning"]),
    ],
)
def test_the_master_that_the_hook_resolves(master: str | None, severities: list[str]) -> None:
    assert [f.severity for f in spark_findings(CONFIG, master, {})] == severities


def test_yarn_is_meant_where_hadoop_is_configured() -> None:
    remote = replace(CONFIG, lake="hdfs://name/lake")
    assert list(spark_findings(remote, "yarn", {"HADOOP_CONF_DIR": "/etc/hadoop"})) == []


def test_a_cluster_with_an_object_store_is_sound() -> None:
    assert list(spark_findings(replace(CONFIG, lake="gs://b/lake"), "spark://a:7077,b:7077", {})) == []
