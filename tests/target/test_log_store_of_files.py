"""Delta's commits in a folder: of two drivers, each in a JVM of its own, exactly one wins a version (R5), and what
Hadoop wrote before it goes on.
"""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sandbox.setup.log_store import JAR
from tests.support import rival_driver
from tests.support.rival_driver import Commits, Driver

# As a driver has it, other than the tests' own session.
HADOOPS = {
    "fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    "fs.file.impl.disable.cache": "true",
    "fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.LocalFs",
}
LOST = "java.nio.file.FileAlreadyExistsException"
VERSIONS = 300


@pytest.fixture
def commits(tmp_path: Path) -> Commits:
    (tmp_path / "a table" / "_delta_log").mkdir(parents=True)
    return Commits(f"file:{tmp_path}/a table", "tidemark.delta.LinkedLogStore", HADOOPS, [str(JAR)])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "a table" / "_delta_log"


@pytest.fixture
def driver(spark: SparkSession, commits: Commits) -> Driver:
    return Driver(spark.sparkContext._jvm, commits, "this one")


def name_of(version: int) -> str:
    return f"{version:020}.json"


@pytest.mark.thorough
def test_of_two_drivers_that_commit_at_once_exactly_one_wins_each_version(
    driver: Driver, commits: Commits, log: Path
) -> None:
    """By Delta's own log store for files both win one of so many, more or less."""
    won = {"this one": 0, "rival": 0}
    with rival_driver.running(commits) as rival:
        for version in range(VERSIONS):
            rival_driver.asked(rival, version)
            answers = {"this one": driver.commit(version), "rival": rival_driver.answered(rival)}
            assert sorted(answers.values()) == [LOST, "won"]
            winner = next(who for who, answer in answers.items() if answer == "won")
            won[winner] += 1
            assert f'"{winner}"' in (log / name_of(version)).read_text()
    assert sorted(os.listdir(log)) == [name_of(version) for version in range(VERSIONS)]


def test_a_commit_is_read_and_a_version_that_is_there_is_not_replaced(driver: Driver, log: Path) -> None:
    (log / name_of(1)).write_text("another's\n")
    assert driver.commit(0) == "won"
    assert driver.commit(1) == LOST
    assert driver.read(name_of(0)) == ['{"commitInfo":{"who":"this one"}}', "{}"]
    assert driver.read(name_of(1)) == ["another's"]
    assert driver.listed(0) == [name_of(0), name_of(1)]
    assert driver.listed(2) == []


def test_what_may_be_overwritten_is(driver: Driver, log: Path) -> None:
    (log / name_of(0)).write_text("another's\n")
    assert driver.commit(0, overwrite=True) == "won"
    assert "this one" in (log / name_of(0)).read_text()
    assert os.listdir(log) == [name_of(0)]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_checksum_that_hadoop_keeps_of_an_older_content_goes(overwrite: bool, driver: Driver, log: Path) -> None:
    """As of `_last_checkpoint` of a table from before, or of a driver that died between the two."""
    (log / f".{name_of(0)}.crc").write_bytes(b"crc\0\0\0\2\0" + b"\xff" * 4)
    if overwrite:
        (log / name_of(0)).write_text("another's\n")
    assert driver.commit(0, overwrite=overwrite) == "won"
    assert driver.read(name_of(0)) == ['{"commitInfo":{"who":"this one"}}', "{}"]
    assert os.listdir(log) == [name_of(0)]


@pytest.mark.parametrize(("umask", "mode"), [("022", 0o644), ("077", 0o600), ("002", 0o664)])
def test_a_commit_is_shared_as_hadoop_shares_files(
    umask: str, mode: int, spark: SparkSession, commits: Commits, log: Path
) -> None:
    shared = replace(commits, settings={**HADOOPS, "fs.permissions.umask-mode": umask})
    assert Driver(spark.sparkContext._jvm, shared, "this one").commit(0) == "won"
    assert stat.S_IMODE((log / name_of(0)).stat().st_mode) == mode


def test_a_commit_into_a_folder_that_is_gone_says_so(driver: Driver, log: Path) -> None:
    log.rmdir()
    assert driver.commit(0) == "java.io.FileNotFoundException"


def test_a_listing_has_what_hadoops_has(driver: Driver, log: Path) -> None:
    for version in range(3):
        driver.commit(version)
    (log / f".{name_of(1)}.crc").write_bytes(b"crc")
    (log / f"{2:020}.crc").write_text("{}")
    (log / "_last_checkpoint").write_text("{}")
    assert driver.listed(1) == [name_of(1), f"{2:020}.crc", name_of(2), "_last_checkpoint"]
    status = driver.listing(2).next()
    written = (log / f"{2:020}.crc").stat()
    assert (status.getLen(), status.getModificationTime()) == (2, int(written.st_mtime_ns // 10**6))
    assert str(status.getPath()).endswith(f"/a table/_delta_log/{2:020}.crc")


def test_a_listing_reads_the_status_of_a_file_when_its_turn_comes(driver: Driver, log: Path) -> None:
    """A log that gets a commit every few seconds has hundred thousands of files."""
    for version in range(5):
        driver.commit(version)
    listing = driver.listing(2)
    (log / name_of(3)).unlink()
    names = []
    while listing.hasNext():
        names.append(str(listing.next().getPath().getName()))
    assert names == [name_of(2), name_of(4)]


def test_a_listing_of_a_folder_that_is_gone_says_so(driver: Driver, log: Path) -> None:
    log.rmdir()
    assert driver.listed(0) == "java.io.FileNotFoundException"
