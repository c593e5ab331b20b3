"""A fresh lake per test, on the session's one Spark."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from tests.support import azure_server, google_server, s3_server
from tests.support.azure_server import Azure
from tests.support.google_server import Google
from tests.support.s3_server import S3Server
from tests.target.lake import Lake, LakeInABucket
from tidemark.target import merge
from tidemark.target.chunks import chunk_equality
from tidemark.target.chunks.chunk_equality import EqualChunks
from tidemark.target.driver import row_merge

Proven = list[bool]


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    """In a folder, or where TIDEMARK_TEST_LAKE says so in a bucket."""
    store = os.environ.get("TIDEMARK_TEST_LAKE", "")
    if store in ("s3", "google"):
        return _in_a_bucket(spark, tmp_path / "lake", request, store)
    if store == "azure":
        azure: Azure = request.getfixturevalue("azure")
        uri = azure.lake()
        container = urlsplit(uri).netloc
        azure_server.let_in(spark, uri, azure.access(uri))
        return LakeInABucket(
            spark, tmp_path / "lake", uri, partial(azure.put, container), partial(azure.copy, container)
        )
    return Lake(spark, tmp_path / "lake")


def _in_a_bucket(spark: SparkSession, root: Path, request: pytest.FixtureRequest, store: str) -> LakeInABucket:
    server: S3Server = request.getfixturevalue("s3_server")
    bucket = server.new_bucket("lake")
    if store == "s3":
        uri = f"s3a://{bucket}/lake"
        s3_server.let_in(spark, uri, s3_server.access(server.url))
    else:
        google: Google = request.getfixturevalue("google")
        uri = f"gs://{bucket}/lake"
        google_server.let_in(spark, uri, google.access(uri))

    def put(key: str, content: bytes) -> None:
        server.client().put_object(Bucket=bucket, Key=key, Body=content)

    return LakeInABucket(spark, root, uri, put, partial(server.copy, bucket))


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who folds few changes, as those of every test are: Spark, or, where a test asks for that too, the driver."""
    chosen = str(getattr(request, "param", "spark"))
    if chosen == "spark":
        monkeypatch.setattr(row_merge, "MAX_ROWS", -1)
    return chosen


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> Proven:
    """Per table and merge with chunks that are compared, whether the driver proved them equal; Spark must say the same
    of them."""
    done: Proven = []
    compare, prove = merge.TableMerge._compare, merge.equal_chunks

    def spied(*given: Any, **named: Any) -> EqualChunks | None:
        equal = prove(*given, **named)
        if any(batch.claims for batch in given[3].batches):
            done.append(equal is not None)
        return equal

    def both(own: merge.TableMerge, *given: Any, **named: Any) -> Any:
        before = len(done)
        mine = compare(own, *given, **named)
        if any(done[before:]):
            own.session.conf.set(chunk_equality.SETTING, "false")
            sparks = compare(own, *given, **named)
            own.session.conf.unset(chunk_equality.SETTING)
            done.pop()
            assert mine == sparks
        return mine

    monkeypatch.setattr(merge, "equal_chunks", spied)
    monkeypatch.setattr(merge.TableMerge, "_compare", both)
    return done


@pytest.fixture
def is_proven(proven: Proven, monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """By table, whether the driver proved the chunks equal that were compared last."""
    done: dict[str, bool] = {}
    prove = merge.equal_chunks

    def spied(*given: Any, **named: Any) -> EqualChunks | None:
        equal = prove(*given, **named)
        if any(batch.claims for batch in given[3].batches) and given[0].conf.get(chunk_equality.SETTING, "") != "false":
            done[given[2][-1].table.name] = equal is not None
        return equal

    monkeypatch.setattr(merge, "equal_chunks", spied)
    return done
