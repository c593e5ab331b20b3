"""Delta's commits on Azure: of two drivers, each in a JVM of its own, exactly one wins a version, also where answers of
the store are lost (R5). Against Azure's emulator, of an account with a hierarchical namespace and of one without.

Delta's own log store writes a commit aside and renames it, if there is none. With a namespace a rename is one request;
without one Hadoop's client copies, if there is none, and deletes.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from tests.support import azure_server, certificates, local_spark, rival_driver
from tests.support.azure_front import ACCOUNT, Fault, Request
from tests.support.azure_server import Azure
from tests.support.rival_driver import Commits, Driver
from tidemark.storage import log_store_settings

pytestmark = pytest.mark.thorough

LOST: Final = "java.nio.file.FileAlreadyExistsException"
REFUSED: Final = "java.nio.file.AccessDeniedException"
VERSIONS: Final = 12
LOG: Final = "lake/t/_delta_log"
# What makes a commit there, of each kind of account.
DECIDES: Final = {"without namespace": "COPY", "with namespace": "RENAME"}


@pytest.fixture(scope="module", params=[*DECIDES])
def account(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Azure]]:
    has_namespace = request.param == "with namespace"
    with azure_server.running(tmp_path_factory.mktemp("azure"), has_namespace) as azure:
        yield DECIDES[request.param], azure


@pytest.fixture
def decides(account: tuple[str, Azure]) -> str:
    return account[0]


@pytest.fixture
def azure(account: tuple[str, Azure]) -> Azure:
    account[1].front.begin_anew()
    return account[1]


@pytest.fixture
def commits(azure: Azure, spark: SparkSession, tmp_path: Path) -> Commits:
    certificates.trust(spark, certificates.made_for())
    trusted = tmp_path / "trusted.p12"
    trusted.write_bytes(certificates.made_for().trusted)
    lake = azure.lake()
    settings = {
        **azure_server.of_hadoop(lake, azure.access(lake)),
        "fs.abfss.impl": "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem",
        "fs.abfss.impl.disable.cache": "true",
    }
    of_tls = "javax.net.ssl.trustStore"
    properties = {of_tls: str(trusted), f"{of_tls}Password": certificates.PASSWORD}
    return Commits(f"{lake}/t", log_store_settings.DELTAS_FOR_AZURE, settings, [local_spark.azure_jars()], properties)


@pytest.fixture
def container(commits: Commits) -> str:
    return commits.table.removeprefix("abfss://").partition("@")[0]


@pytest.fixture
def driver(spark: SparkSession, commits: Commits) -> Driver:
    made = Driver(spark.sparkContext._jvm, commits, "this one")
    made.make_log()
    return made


@pytest.fixture
def rival(commits: Commits) -> Iterator[subprocess.Popen[str]]:
    with rival_driver.running(commits) as process:
        yield process


def test_of_two_drivers_that_commit_at_once_exactly_one_wins_each_version(
    driver: Driver, rival: subprocess.Popen[str], azure: Azure, container: str, decides: str
) -> None:
    together = threading.Barrier(2)
    azure.front.gate = lambda request: together.wait(30) if request.kind == decides else None
    winners = {}
    for version in range(VERSIONS):
        rival_driver.asked(rival, version)
        answers = {"this one": driver.commit(version), "rival": rival_driver.answered(rival)}
        assert sorted(answers.values()) == [LOST, "won"]
        winners[version] = next(who for who, answer in answers.items() if answer == "won")
    for version, who in winners.items():
        assert f'"{who}"' in azure.read(container, _name(version)).decode()
    assert azure.front.counted()[decides] == 2 * VERSIONS


def test_a_log_store_that_creates_a_commit_under_its_name_lets_both_win_without_a_namespace(
    commits: Commits, spark: SparkSession, azure: Azure, container: str, decides: str
) -> None:
    """Hadoop's client looks whether it is there, and overwrites: docs/decisions, a lake on Azure needs a namespace."""
    creating = replace(commits, log_store="io.delta.storage.S3SingleDriverLogStore")
    driver = Driver(spark.sparkContext._jvm, creating, "this one")
    driver.make_log()
    is_held, may_go = threading.Event(), threading.Event()

    def hold_the_first(request: Request) -> None:
        if request.kind in ("PUT", "PUT file") and not is_held.is_set():
            is_held.set()
            assert may_go.wait(60)

    with rival_driver.running(creating) as rival, ThreadPoolExecutor(1) as thread:
        azure.front.gate = hold_the_first
        ours = thread.submit(driver.commit, 0)
        assert is_held.wait(60)
        rival_driver.asked(rival, 0)
        assert rival_driver.answered(rival) == "won"
        may_go.set()
        assert ours.result() == ("won" if decides == DECIDES["without namespace"] else LOST)
    is_lost = "rival" not in azure.read(container, _name(0)).decode()
    assert is_lost is (decides == DECIDES["without namespace"])


@pytest.mark.parametrize("fault", ["before", "after", "busy", "internal error"])
def test_a_commit_whose_request_fails_is_made_once_and_is_known_for_ones_own(
    fault: Fault, driver: Driver, azure: Azure, container: str, decides: str
) -> None:
    _break_the_first(azure, decides, fault)
    assert driver.commit(0) == "won"
    assert [way for way, _ in azure.front.broken] == [fault]
    assert "this one" in azure.read(container, _name(0)).decode()
    assert azure.names(container, LOG) == [_name(0)]


def test_the_answer_that_is_lost_may_be_that_another_driver_has_won(
    driver: Driver, azure: Azure, container: str, decides: str
) -> None:
    """It comes between this driver's look, by which there was none, and its request."""
    _break_the_first(azure, decides, "after")

    def another_wins(request: Request) -> None:
        if request.kind == decides and not azure.front.broken:
            azure.put(container, _name(0), b"another's")

    azure.front.gate = another_wins
    assert driver.commit(0) == LOST
    assert azure.read(container, _name(0)) == b"another's"


@pytest.mark.parametrize("fault", ["before", "busy"])
def test_a_file_of_a_log_whose_request_fails_is_read_again_and_whole(
    fault: Fault, driver: Driver, azure: Azure
) -> None:
    assert driver.commit(0) == "won"
    _break_the_first(azure, "GET", fault)
    assert driver.read(f"{0:020}.json") == ['{"commitInfo":{"who":"this one"}}', "{}"]
    assert [way for way, _ in azure.front.broken] == [fault]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"extra": {"sas_token": azure_server.signature(hours=-1)}}, REFUSED),
        ({"extra": {"sas_token": azure_server.signature("rl")}}, REFUSED),
        ({"password": "YW5vdGhlciBrZXk="}, REFUSED),
    ],
    ids=["a signature that has expired", "one without a right", "another key"],
)
@pytest.mark.parametrize("account", ["without namespace"], indirect=True)
def test_a_driver_that_may_not_commit_is_refused(
    fields: dict[str, Any], said: str, commits: Commits, driver: Driver, spark: SparkSession, azure: Azure
) -> None:
    """The log's folder is there already. Who asks is known to the emulator alone, which has no namespace."""
    lake = commits.table.removesuffix("/t")
    access = azure_server.of_hadoop(lake, azure.access(lake, login=ACCOUNT, **fields))
    of_hadoop = {name: value for name, value in commits.settings.items() if name.startswith("fs.abfss")}
    other = Driver(spark.sparkContext._jvm, replace(commits, settings={**of_hadoop, **access}), "another")
    assert other.commit(0) == said


def _name(version: int) -> str:
    return f"{LOG}/{version:020}.json"


def _break_the_first(azure: Azure, kind: str, fault: Fault) -> None:
    azure.front.fault = lambda request: fault if request.kind == kind and not azure.front.broken else None
