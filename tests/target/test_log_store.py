"""Delta's commits on S3: of two drivers, each in a JVM of its own, exactly one wins a version, also where answers of
the store are lost (R5). Against a real S3 server.
"""

from __future__ import annotations

import subprocess
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sandbox.setup import log_store
from tests.support import local_spark, rival_driver
from tests.support.rival_driver import Commits, Driver
from tests.support.s3_proxy import Fault, Proxy, Request
from tests.support.s3_server import S3Server

LOST = "java.nio.file.FileAlreadyExistsException"
VERSIONS = 12


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.new_bucket("commits")


@pytest.fixture
def commits(s3_proxy: Proxy, bucket: str) -> Commits:
    return rival_driver.on_s3(s3_proxy.url, f"s3a://{bucket}/t")


@pytest.fixture
def driver(spark: SparkSession, commits: Commits) -> Driver:
    return Driver(spark.sparkContext._jvm, commits, "this one")


@pytest.fixture
def rival(commits: Commits) -> Iterator[subprocess.Popen[str]]:
    with rival_driver.running(commits) as process:
        yield process


def test_of_two_drivers_that_commit_at_once_exactly_one_wins_each_version(
    driver: Driver, rival: subprocess.Popen[str], s3_proxy: Proxy, s3_server: S3Server, bucket: str
) -> None:
    together = threading.Barrier(2)
    s3_proxy.gate = lambda request: together.wait(30) if request.method == "PUT" else None  # each waits for the other
    winners = {}
    for version in range(VERSIONS):
        rival_driver.asked(rival, version)
        answers = {"this one": driver.commit(version), "rival": rival_driver.answered(rival)}
        assert sorted(answers.values()) == [LOST, "won"]
        winners[version] = next(who for who, answer in answers.items() if answer == "won")
    for version, who in winners.items():
        assert f'"{who}"' in s3_server.read(bucket, f"t/_delta_log/{version:020}.json").decode()
    assert len(s3_server.keys(bucket, "t/_delta_log/")) == VERSIONS


@pytest.mark.parametrize("fault", ["before", "after", "slow down", "conflict"])
def test_a_commit_whose_request_fails_is_made_once_and_is_known_for_ones_own(
    fault: Fault, driver: Driver, s3_proxy: Proxy, s3_server: S3Server, bucket: str
) -> None:
    _break_the_first_put(s3_proxy, fault)
    assert driver.commit(0) == "won"
    assert [way for way, _ in s3_proxy.broken] == [fault]
    assert "this one" in s3_server.read(bucket, "t/_delta_log/00000000000000000000.json").decode()


def test_a_commit_that_always_meets_another_request_fails_and_is_no_lost_race(driver: Driver, s3_proxy: Proxy) -> None:
    s3_proxy.fault = lambda request: "conflict" if request.method == "PUT" else None
    assert driver.commit(0) == "org.apache.hadoop.fs.s3a.AWSBadRequestException"
    assert len(s3_proxy.broken) == 5


def test_a_commit_that_arrives_when_it_was_given_up_is_refused(
    driver: Driver, s3_proxy: Proxy, s3_server: S3Server, bucket: str
) -> None:
    """S3A asks again, and is the first to arrive."""
    _break_the_first_put(s3_proxy, "late")
    assert driver.commit(0) == "won"
    key = "t/_delta_log/00000000000000000000.json"
    s3_server.client().put_object(Bucket=bucket, Key=key, Body=b"as it was")
    assert s3_proxy.let_go() == [412]
    assert s3_server.read(bucket, key) == b"as it was"


def test_the_answer_that_is_lost_may_be_that_another_driver_has_won(
    driver: Driver, s3_proxy: Proxy, s3_server: S3Server, bucket: str
) -> None:
    key = "t/_delta_log/00000000000000000000.json"
    s3_server.client().put_object(Bucket=bucket, Key=key, Body=b"another's")
    _break_the_first_put(s3_proxy, "after")
    assert driver.commit(0) == LOST
    assert s3_server.read(bucket, key) == b"another's"


def test_what_may_be_overwritten_is(driver: Driver, s3_server: S3Server, bucket: str) -> None:
    key = "t/_delta_log/00000000000000000000.json"
    s3_server.client().put_object(Bucket=bucket, Key=key, Body=b"another's")
    assert driver.commit(0, overwrite=True) == "won"
    assert "this one" in s3_server.read(bucket, key).decode()


def test_a_file_of_a_log_is_read_by_one_request(driver: Driver, s3_proxy: Proxy) -> None:
    assert driver.commit(0) == "won"
    s3_proxy.forget()
    assert driver.read(f"{0:020}.json") == ['{"commitInfo":{"who":"this one"}}', "{}"]
    assert s3_proxy.counted() == {"GET": 1}
    assert driver.read("_last_checkpoint") == "java.io.FileNotFoundException"


@pytest.mark.parametrize("fault", ["before", "half", "slow down", "no right"])
def test_a_file_of_a_log_whose_request_fails_is_read_again_and_whole(
    fault: Fault, driver: Driver, s3_proxy: Proxy
) -> None:
    assert driver.commit(0) == "won"
    s3_proxy.fault = lambda request: fault if request.kind == "GET" and not s3_proxy.broken else None
    assert driver.read(f"{0:020}.json") == ['{"commitInfo":{"who":"this one"}}', "{}"]
    assert [way for way, _ in s3_proxy.broken] == [fault]


def test_a_log_is_listed_from_a_version_on_and_not_from_its_beginning(
    driver: Driver, s3_proxy: Proxy, s3_server: S3Server, bucket: str
) -> None:
    names = [f"{version:020}.{kind}" for version in range(7) for kind in ("crc", "json")] + ["_last_checkpoint"]
    for name in (*names, "_staged_commits/00000000000000000009.json"):
        s3_server.client().put_object(Bucket=bucket, Key=f"t/_delta_log/{name}", Body=b"{}")
    s3_proxy.page = 4
    assert driver.listed(3) == names[6:]
    assert s3_proxy.counted() == {"LIST": 3}
    assert driver.listed(0) == names
    assert driver.listed(9) == ["_last_checkpoint"]


def test_a_log_that_is_not_there_is_none_and_one_that_holds_nothing_is_empty(
    driver: Driver, s3_server: S3Server, bucket: str
) -> None:
    assert driver.listed(0) == "java.io.FileNotFoundException"
    s3_server.client().put_object(Bucket=bucket, Key="t/_delta_log/00000000000000000000.json", Body=b"{}")
    assert driver.listed(1) == []


@pytest.mark.parametrize("fault", ["before", "half", "slow down", "no right"])
def test_a_listing_that_fails_is_made_again(fault: Fault, driver: Driver, s3_proxy: Proxy) -> None:
    assert driver.commit(0) == "won"
    s3_proxy.fault = lambda request: fault if request.kind == "LIST" and not s3_proxy.broken else None
    assert driver.listed(0) == ["00000000000000000000.json"]
    assert [way for way, _ in s3_proxy.broken] == [fault]


def test_the_jar_is_what_its_source_says(spark: SparkSession, tmp_path: Path) -> None:
    built = tmp_path / "built.jar"
    log_store.build(spark.sparkContext._gateway, Path(local_spark.jars().partition(",")[0]).parent, built)
    with zipfile.ZipFile(built) as ours, zipfile.ZipFile(log_store.JAR) as shipped:
        assert ours.namelist() == shipped.namelist()
        assert [ours.read(name) for name in ours.namelist()] == [shipped.read(name) for name in shipped.namelist()]


def _break_the_first_put(proxy: Proxy, fault: Fault) -> None:
    def break_one(request: Request) -> Fault | None:
        return fault if request.method == "PUT" and not proxy.broken else None

    proxy.fault = break_one
