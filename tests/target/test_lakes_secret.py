"""A setting that names the variable with the lake's secret -> what Hadoop's client and executors get."""

from __future__ import annotations

import os

import pytest
from pyspark.sql import SparkSession

from tidemark.storage.lake_access import AZURE_SECRET, LakeAccess
from tidemark.target.delta import session

LAKE = "abfss://lake@store.dfs.core.windows.net/tidemark"
KEY = "fs.azure.account.key.store.dfs.core.windows.net"


def test_the_variable_becomes_its_value_for_executors_and_stands_in_no_setting_of_sparks(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = LakeAccess(secrets={"account_key": "the secret"}).spark_settings(LAKE)
    name = f"spark.hadoop.{KEY}"
    value = settings[name]
    monkeypatch.setenv(AZURE_SECRET, "the secret")
    spark.sparkContext._conf.set(name, value)
    of_hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    try:
        session._pass_on_lake_secret(spark)
        assert of_hadoop.get(KEY) == "the secret"
        assert spark.sparkContext.getConf().get(name) == value
    finally:
        of_hadoop.unset(KEY)
        spark.sparkContext._conf._jconf.remove(name)


def test_hadoop_itself_looks_the_variable_up(spark: SparkSession) -> None:
    """Where the driver's machine is the only one."""
    of_hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    of_hadoop.set("tidemark.tests.home", "${env.HOME}")
    assert of_hadoop.get("tidemark.tests.home") == os.environ["HOME"]
    of_hadoop.unset("tidemark.tests.home")
