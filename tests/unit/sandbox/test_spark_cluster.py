"""The cluster of `make up CLUSTER=1`: what its processes are told, and what nobody else is."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from sandbox.checkout import Checkout, this_checkout
from sandbox.services import processes
from sandbox.services.processes import Services
from sandbox.steps import StepFailed
from tidemark.config.airflow_connections import look_up
from tidemark.config.file_reader import load


@pytest.fixture
def services(tmp_path: Path) -> Services:
    return Services(Checkout(tmp_path), on_cluster=True, spark_port=7077, spark_ui_port=8180, s3_port=9000)


def test_sparks_secret_is_in_one_file_that_its_owner_alone_may_read(services: Services) -> None:
    services.spark.configure()
    file = services.spark.configuration / "spark-defaults.conf"
    settings = dict(line.split() for line in file.read_text().splitlines())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert settings["spark.authenticate.secret"] == services.spark_secret
    assert settings["spark.authenticate"] == settings["spark.network.crypto.enabled"] == "true"
    assert settings["spark.master.rest.enabled"] == "false", "it asks for no secret"
    for daemon in (services.spark.master_daemon(), services.spark.worker_daemon(1)):
        assert services.spark_secret not in repr(daemon)
    assert services.spark_secret not in repr(services) + repr(services.spark)


def test_everything_listens_on_this_machine_alone(services: Services) -> None:
    for daemon in (services.spark.master_daemon(), services.spark.worker_daemon(1)):
        assert daemon.environment["SPARK_LOCAL_IP"] == "127.0.0.1"
        assert daemon.command[daemon.command.index("--host") + 1] == "127.0.0.1"
    store = services.object_store.daemon()
    assert (store.environment["BIND_HOST"], store.environment["IOT_MTLS_ENABLED"]) == ("127.0.0.1", "0")


def test_the_pipeline_finds_its_connections(services: Services) -> None:
    root = Path(__file__).resolve().parents[3]
    config = load(root / "include" / "sandbox" / "demo" / "on_cluster" / "shop.yaml")
    environment = services.environment()
    spark = look_up(config.spark_connection, environment=environment).spark_connection()
    assert (spark.master, spark.drives_here) == ("spark://127.0.0.1:7077", True)
    access = look_up(str(config.lake_connection), environment=environment).lake_access(config.lake)
    assert access.settings["endpoint"] == services.object_store.url
    assert access.secrets == {"access_key_id": services.s3_key, "secret_access_key": services.s3_secret}
    assert json.loads(environment["AIRFLOW_CONN_SPARK_DEFAULT"])["extra"] == {"deploy-mode": "client"}
    assert services.pipelines == services.checkout.root / "include" / "sandbox" / "demo" / "on_cluster"


@pytest.mark.parametrize(("said", "wanted"), [("1", True), ("0", False), ("", False)])
def test_what_runs_without_a_cluster_gets_none_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, wanted: bool
) -> None:
    monkeypatch.setenv("CLUSTER", said)
    without = Services(Checkout(tmp_path))
    if not wanted:
        processes.refuse_another_kind(without)
        return
    with pytest.raises(StepFailed, match="make down"):
        processes.refuse_another_kind(without)


def test_the_pipeline_that_follows_is_that_of_the_demo_in_another_folder(tmp_path: Path) -> None:
    root = this_checkout().root / "include"
    following = load(root / "sandbox" / "demo" / "following" / "shop.yaml")
    usual = load(root / "pipelines" / "shop.yaml")
    assert following.follow is not None
    for name in ("pipeline", "source_connection", "slot", "publication", "tables", "lake", "ledger_connection"):
        assert getattr(following, name) == getattr(usual, name)
    services = Services(Checkout(tmp_path), follows=True)
    assert services.environment()["TIDEMARK_PIPELINES"] == str(services.pipelines)
