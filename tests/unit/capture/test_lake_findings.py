"""The lake's log store, judged from the pipeline file and from what this machine has Spark do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.capture.preflight.lake_findings import log_store_findings
from tidemark.config import PipelineConfig, TableRule
from tidemark.storage import log_store_settings

CONFIG = PipelineConfig("shop", "s", "slot", "pub", True, (TableRule("shop.*"),), "/lake", "l")
DYNAMODB = "io.delta.storage.S3DynamoDBLogStore"


@pytest.mark.parametrize(
    ("lake", "conf", "severities"),
    [
        ("/lake", {}, []),
        ("/lake", {"spark.delta.logStore.file.impl": "tidemark.delta.LinkedLogStore"}, []),
        ("/lake", {"spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore"}, ["error"]),
        ("file:///lake", {"spark.delta.logStore.file.impl": "io.delta.storage.HDFSLogStore"}, ["error"]),
        ("gs://bucket/lake", {}, ["warning"]),
        ("abfss://c@a.dfs.core.windows.net/lake", {}, ["warning"]),
        ("gs://bucket/lake", {"spark.delta.logStore.gs.impl": "io.delta.storage.LocalLogStore"}, ["error", "warning"]),
        ("abfss://c@a/lake", {"spark.delta.logStore.abfss.impl": "io.delta.storage.AzureLogStore"}, ["warning"]),
        (
            "abfss://c@a/lake",
            {"spark.delta.logStore.abfss.impl": "io.delta.storage.HDFSLogStore"},
            ["error", "warning"],
        ),
        ("abfss://c@a/lake", {"spark.delta.logStore.class": "io.delta.storage.LocalLogStore"}, ["error", "warning"]),
        ("s3a://bucket/lake", {}, []),
        ("s3a://bucket/lake", {"spark.delta.logStore.s3a.impl": DYNAMODB}, []),
        ("s3a://bucket/lake", {"spark.delta.logStore.class": DYNAMODB}, ["error"]),
        ("s3a://bucket/lake", {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3SingleDriverLogStore"}, ["error"]),
    ],
)
def test_a_log_store_that_does_not_fence_drivers_is_refused(
    lake: str, conf: dict[str, str], severities: list[str]
) -> None:
    of_file = list(log_store_findings(replace(CONFIG, lake=lake, spark_conf=conf), {}))
    assert [f.severity for f in of_file] == severities
    of_machine = list(log_store_findings(replace(CONFIG, lake=lake), conf))
    assert [f.severity for f in of_machine] == severities
    for found, file in ((of_file, "spark.conf"), (of_machine, "spark-defaults.conf")):
        assert [f.remedy for f in found if f.severity == "error" and f"from {file}" not in f.remedy] == []


def test_what_the_pipeline_file_says_wins_over_the_machine() -> None:
    config = replace(CONFIG, lake="s3a://bucket/lake", spark_conf={log_store_settings.OF_S3: log_store_settings.OWN})
    machine = {log_store_settings.OF_S3: "io.delta.storage.S3SingleDriverLogStore"}
    assert list(log_store_findings(config, machine)) == []
