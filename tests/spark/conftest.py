"""A fresh lake per test, on the session's one Spark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.lake import Lake, LakeInABucket
from tidemark.target import few_changes


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    """In a folder, or where TIDEMARK_TEST_LAKE says so in a bucket."""
    store = os.environ.get("TIDEMARK_TEST_LAKE")
    if store in ("s3", "google"):
        google = request.getfixturevalue("google") if store == "google" else None
        return LakeInABucket(spark, tmp_path / "lake", request.getfixturevalue("s3_server"), google)
    return Lake(spark, tmp_path / "lake")


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who folds few changes, as those of every test are: Spark, or, where a test asks for that too, the driver."""
    chosen = str(getattr(request, "param", "spark"))
    if chosen == "spark":
        monkeypatch.setattr(few_changes, "MAX_ROWS", -1)
    return chosen
