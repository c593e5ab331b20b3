"""Spark's guesses of what is small are made of file sizes, and a key that counts upwards is a thousandth of itself in a
file: sent to the driver, a table that was guessed at some megabytes would be all of its memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.target.delta.session import expect_any_rows, expect_few_rows, table_session


@pytest.mark.parametrize("expect", [expect_any_rows, expect_few_rows])
def test_only_what_is_known_to_be_small_is_broadcast(spark: SparkSession, tmp_path: Path, expect: object) -> None:
    session = table_session(spark, "joins", str(tmp_path))
    assert callable(expect)
    expect(session)
    session.range(100).write.parquet(str(tmp_path / "guessed"))
    guessed, known = session.read.parquet(str(tmp_path / "guessed")), F.broadcast(session.range(5))

    def joins(other: DataFrame) -> str:
        return str(guessed.join(other, "id")._jdf.queryExecution().executedPlan().toString())

    assert "BroadcastHashJoin" in joins(known)
    assert "Broadcast" not in joins(guessed.alias("again"))
