"""A pipeline whose lake is a container of Azure's emulator, of an account with a hierarchical namespace: requests that
break, credentials that end, drivers that are killed; and who is let in without a secret being told.

`make faults` plays every scenario there too (TIDEMARK_TEST_LAKE=azure).
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from py4j.protocol import Py4JJavaError

from spark_apps import merge_batch
from tests.faults import workload
from tests.faults.rows_from_before import old_tables
from tests.support import azure_server, certificates, judge, local_spark, stages
from tests.support.azure_front import PASSING, Fault, Request
from tests.support.azure_server import KEY, Azure
from tests.support.capture import REPOSITORY, Environment
from tests.support.remedies import Told, ends_equal
from tidemark.errors import LakeRefused, LakeUnreachable
from tidemark.target.merge_failures import as_refusal

pytestmark = pytest.mark.thorough

STAGES: Final = ("drain", "merge", "confirm")


@pytest.fixture(scope="module")
def shared(new_environment: Callable[..., Environment], azure: Azure) -> Environment:
    environment = new_environment("on_azure", workload.TABLES)
    azure.put_lake(environment)
    workload.create(environment)
    return environment


@pytest.fixture
def shop(shared: Environment, azure: Azure) -> Iterator[Environment]:
    """A pipeline that the tests share: each of them leaves its tables equal to the source."""
    shared.let_leases_end()
    azure.front.begin_anew()
    yield shared
    azure.front.begin_anew()


def test_changes_a_killed_drain_a_driver_that_outlives_its_task_and_a_backfill_end_equal(shop: Environment) -> None:
    workload.change(shop)
    shop.begin_run()
    shop.crash("drain.after_manifest")
    shop.drain()
    outlived = shop.halt("merge", "merge.before_current")
    shop.let_leases_end()
    workload.change(shop)
    shop.run()
    assert judge.changes_of_outlived(shop, outlived) == []
    shop.let_leases_end()
    shop.backfill(*old_tables(shop).tables, chunk_rows=5)
    ends_equal(shop)
    assert shop.confirmed_lsn() == shop.staged_lsn()


@pytest.mark.parametrize("name", ["merge.before_history", "merge.before_current", "merge.before_result"])
def test_a_merge_killed_here_whose_requests_break_is_finished_by_its_retry(
    name: str, shop: Environment, azure: Azure
) -> None:
    workload.change(shop)
    azure.front.fault = _one_in(11)
    shop.begin_run()
    shop.drain()
    shop.crash(name)
    shop.merge()
    shop.confirm()
    assert {way for way, _ in azure.front.broken} == set(PASSING)
    azure.front.begin_anew()
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []
    assert shop.confirmed_lsn() == shop.staged_lsn()


@pytest.mark.parametrize(
    ("stage", "nth", "how", "status"),
    [
        ("drain", 3, "expired", "401"),
        ("drain", 1, "wrong signature", "403"),
        ("merge", 4, "wrong signature", "403"),
        ("merge", 30, "expired", "401"),
        ("merge", 60, "no right", "403"),
    ],
)
@pytest.mark.walks("LakeRefused")
def test_credentials_that_end_in_mid_run_lose_nothing_and_park_nothing(
    stage: str,
    nth: int,
    how: Fault,
    status: str,
    shop: Environment,
    azure: Azure,
    caplog: pytest.LogCaptureFixture,
    told: Told,
) -> None:
    caplog.set_level("DEBUG", "tidemark")
    workload.change(shop)
    shop.begin_run()
    for before in STAGES[: STAGES.index(stage)]:
        getattr(shop, before)()
    azure.front.fault = _from_the(nth, how)
    said = ""
    try:
        getattr(shop, stage)()
    except LakeRefused as refused:
        said = str(refused)
    except Py4JJavaError as failed:  # of the result's file; what a driver says then:
        said = str(as_refusal(failed, "result.json", shop.config.lake))
    azure.front.begin_anew()
    told.read("LakeRefused", said + caplog.text, status)
    _assert_no_table_is_blamed(shop)
    ends_equal(shop)


@pytest.mark.parametrize("how", ["busy", "throttled", "before"])
def test_a_store_that_goes_away_in_a_merge_is_no_tables_fault(how: Fault, shop: Environment, azure: Azure) -> None:
    workload.change(shop)
    shop.begin_run()
    shop.drain()
    azure.front.fault = _from_the(30, how)
    with pytest.raises((Py4JJavaError, LakeUnreachable)):
        shop.merge()
    assert azure.front.broken
    azure.front.begin_anew()
    _assert_no_table_is_blamed(shop)
    ends_equal(shop)


def test_a_driver_of_its_own_has_the_key_by_its_environment_and_tells_it_nobody(
    shop: Environment, tmp_path: Path
) -> None:
    """As spark-submit starts it, with all that Spark itself keeps of an application; and it ends."""
    workload.change(shop)
    shop.begin_run()
    shop.drain()
    trusted = tmp_path / "trusted.p12"
    trusted.write_bytes(certificates.made_for().trusted)
    of_tls = "-Djavax.net.ssl.trustStore"
    lake, access = shop.config.lake, shop.config.lake_access
    of_tests = {k: v for k, v in azure_server.of_hadoop(lake, access).items() if k.startswith(azure_server.OF_TESTS)}
    settings = {
        **access.spark_settings(lake),
        **{f"spark.hadoop.{name}": value for name, value in of_tests.items()},
        "spark.master": "local[2]",
        "spark.jars": local_spark.jars(),
        "spark.driver.extraClassPath": local_spark.azure_jars(),
        "spark.driver.extraJavaOptions": f"{of_tls}={trusted} {of_tls}Password={certificates.PASSWORD}",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(tmp_path / "events"),
        "spark.logConf": "true",
    }
    (tmp_path / "events").mkdir()
    (tmp_path / "spark-defaults.conf").write_text("\n".join(f"{name} {value}" for name, value in settings.items()))
    said: list[str] = []

    def submit(uri: str) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        driver = subprocess.run(
            [Path(sys.executable).with_name("spark-submit"), merge_batch.__file__, "--manifest", uri],
            env={
                **own,
                **access.driver_environment(tmp_path),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # where spark-submit looks for pyspark
                "SPARK_CONF_DIR": str(tmp_path),
                "PYTHONPATH": str(REPOSITORY / "include"),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,  # Hadoop's client may keep a JVM from its end
        )
        said.append(driver.stdout + driver.stderr)

    stages.merge(shop.stage_input(), submit)
    shop.confirm()
    assert shop.confirmed_lsn() == shop.staged_lsn(), said[0][-3000:]
    assert judge.wrongs(shop) == []
    events = [file.read_text(errors="replace") for file in (tmp_path / "events").rglob("*") if file.is_file()]
    assert any("SparkListenerEnvironmentUpdate" in text for text in events), "Spark's list of all settings is not there"
    in_lake = [f.read_bytes().decode("latin-1") for f in judge.lake_folder(shop).rglob("*") if f.is_file()]
    assert [text[:200] for text in (*said, *events, *in_lake, judge.ledger_as_text(shop)) if KEY in text] == []


def _assert_no_table_is_blamed(shop: Environment) -> None:
    assert {row.life.merge for row in shop.table_rows().values()} == {"merging"}
    assert shop.ledger_query("SELECT count(*) FROM tidemark.tables WHERE failed_runs > 0") == [(0,)]


def _one_in(n: int) -> Callable[[Request], Fault | None]:
    """Breaks every nth request, in each passing way in turn."""
    numbers = itertools.count(1)

    def fault(_: Request) -> Fault | None:
        number = next(numbers)
        return None if number % n else PASSING[number // n % len(PASSING)]

    return fault


def _from_the(nth: int, how: Fault) -> Callable[[Request], Fault | None]:
    """Breaks the nth request and every one behind it, in one way."""
    numbers = itertools.count(1)
    return lambda _: how if next(numbers) >= nth else None
