"""A fresh lake per test, on the session's one Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.lake import Lake
from tidemark.target import few_changes


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path / "lake")


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who folds few changes, as those of every test are: Spark, or, where a test asks for that too, the driver."""
    chosen = str(getattr(request, "param", "spark"))
    if chosen == "spark":
        monkeypatch.setattr(few_changes, "MAX_ROWS", -1)
    return chosen
