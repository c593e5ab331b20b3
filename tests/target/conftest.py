"""A fresh lake per test, on the session's one Spark."""

from __future__ import annotations

import os
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from tests.support import azure_server, google_server, s3_server
from tests.support.azure_server import Azure
from tests.support.google_server import Google
from tests.support.merge_ways import leave_to_spark, take_the_public_path
from tests.support.s3_server import S3Server
from tests.target.lake import Lake, LakeInABucket
from tidemark.target.chunks.first_load import FirstLoad
from tidemark.target.driver import key_set
from tidemark.target.merge_choice import Step, Way
from tidemark.target.merge_record import MergeRecord
from tidemark.target.table_merge import TableMerge

Proven = list[bool]
Ways = list[tuple[str, str, Way]]
Added = list[tuple[str, int | None]]
Folded = list[tuple[str, int | None]]


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
    """Who folds few changes, as those of every test are: Spark, or, where a test asks for that too, the driver, or
    Spark by Delta's public API alone."""
    chosen = str(getattr(request, "param", "spark"))
    if chosen in ("spark", "public"):
        leave_to_spark(monkeypatch)
    if chosen == "public":
        take_the_public_path(monkeypatch)
    return chosen


@pytest.fixture(autouse=True)
def keys_have_codes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every other test, chosen by its name, sets of keys of any size are searched by codes, as large ones are."""
    if zlib.crc32(request.node.nodeid.encode()) % 2:
        monkeypatch.setattr(key_set, "LEAST_CODED", 1)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    """Per merge of a table and step the way that it took."""
    taken: Ways = []
    took = MergeRecord.took

    def spied(record: MergeRecord, step: Step, way: Way, why: str = "") -> None:
        taken.append((record.table, step, way))
        took(record, step, way, why)

    monkeypatch.setattr(MergeRecord, "took", spied)
    return taken


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> Proven:
    """Per merge with chunks whose files are not added as they are, whether the driver proved them equal; of those that
    are only compared Spark must say the same."""
    done: Proven = []
    compare, took = TableMerge._compare, MergeRecord.took

    def spied(record: MergeRecord, step: Step, way: Way, why: str = "") -> None:
        if step == "verify" or (step == "chunks" and way != Way.FILES):
            done.append(way == Way.PROOF)
        took(record, step, way, why)

    def both(own: TableMerge, *given: Any, **named: Any) -> Any:
        mine = compare(own, *given, **named)
        if own.record.way.get("verify") == Way.PROOF:
            of_driver, ways = own.choice, dict(own.record.way)
            own.choice = replace(of_driver, ways={**of_driver.ways, "verify": (Way.SPARK,)})
            sparks = compare(own, *given, **named)
            own.choice, own.record.way = of_driver, ways
            done.pop()
            assert mine == sparks
        return mine

    monkeypatch.setattr(MergeRecord, "took", spied)
    monkeypatch.setattr(TableMerge, "_compare", both)
    return done


@pytest.fixture
def is_proven(proven: Proven, monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """By table, whether the driver proved the chunks equal that were compared last."""
    done: dict[str, bool] = {}
    compare = TableMerge._compare

    def spied(own: TableMerge, *given: Any, **named: Any) -> Any:
        compared = compare(own, *given, **named)
        done[own.schema.table.name] = own.record.way.get("verify") == Way.PROOF
        return compared

    monkeypatch.setattr(TableMerge, "_compare", spied)
    return done


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Added:
    """Per merge of a table how many rows of chunks were added as they are; None if all went through Spark."""
    done: Added = []
    original = TableMerge._chunks

    def spied(own: TableMerge, *given: Any) -> Any:
        load, equal = original(own, *given)
        done.append((own.schema.table.name, None if load is None else load.rows))
        return load, equal

    monkeypatch.setattr(TableMerge, "_chunks", spied)
    return done


@pytest.fixture
def folded(monkeypatch: pytest.MonkeyPatch) -> Folded:
    """Per merge with rows of chunks that changes have too, how many of them the driver folded; None: Spark did."""
    done: Folded = []
    original = TableMerge._by_driver

    def spied(own: TableMerge, batches: Any, tables: Any, load: FirstLoad | None, ahead: Any) -> Any:
        changes = original(own, batches, tables, load, ahead)
        if load is not None and load.masked:
            done.append((own.schema.table.name, None if changes is None else load.masked))
        return changes

    monkeypatch.setattr(TableMerge, "_by_driver", spied)
    return done
