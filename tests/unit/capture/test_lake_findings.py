"""The lake's log store, judged from the pipeline file alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.capture.lake_findings import log_store_findings
from tidemark.config import PipelineConfig, TableRule

CONFIG = PipelineConfig("shop", "s", "slot", "pub", True, (TableRule("shop.*"),), "/lake", "l")
DYNAMODB = "io.delta.storage.S3DynamoDBLogStore"


@pytest.mark.parametrize(
    ("lake", "conf", "severities"),
    [
        ("/lake", {}, []),
        ("gs://bucket/lake", {}, ["warning"]),
        ("abfss://c@a.dfs.core.windows.net/lake", {}, ["warning"]),
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
