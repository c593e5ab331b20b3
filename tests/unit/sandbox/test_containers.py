"""The container trial: images by digest, a login, no secret in its text, and who waits for whom.

No engine runs here: that the containers start is not tried. What they are told is: the databases' roles in
tests/sandbox/test_roles_of_the_containers.py, Spark and the S3 server as processes by `make demo CLUSTER=1`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox.checkout import this_checkout
from tidemark.config.file_reader import load

ROOT = this_checkout().root
TEXT = (ROOT / "docker-compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
BY_DIGEST = re.compile(r"[a-z0-9./-]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}")


HEALTHY, DONE = "service_healthy", "service_completed_successfully"
AFTER_MIGRATE = {"ledger": HEALTHY, "migrate": DONE}
AFTER_MASTER = {"spark-master": HEALTHY}
WAITS_FOR: dict[str, dict[str, str]] = {
    "source": {},
    "shop": {"source": HEALTHY},
    "ledger": {},
    "s3": {},
    "bucket": {"s3": HEALTHY},
    "spark-master": {},
    "spark-worker-1": AFTER_MASTER,
    "spark-worker-2": AFTER_MASTER,
    "migrate": {"ledger": HEALTHY},
    "api-server": AFTER_MIGRATE,
    "scheduler": {**AFTER_MIGRATE, "api-server": HEALTHY, "worker": HEALTHY},
    "dag-processor": AFTER_MIGRATE,
    "triggerer": AFTER_MIGRATE,
    "worker": {
        **AFTER_MIGRATE,
        "bucket": DONE,
        "source": HEALTHY,
        "spark-worker-1": HEALTHY,
        "spark-worker-2": HEALTHY,
    },
}


def test_the_file_is_a_compose_file() -> None:
    command = [Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run([*command, ROOT / "docker-compose.yaml"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_who_waits_for_whom() -> None:
    """The schema knows no services, so a name that none has would wait for ever."""
    waits = {
        name: {other: how["condition"] for other, how in service.get("depends_on", {}).items()}
        for name, service in COMPOSE["services"].items()
    }
    assert waits == WAITS_FOR


def test_who_is_waited_for_says_whether_it_is_there() -> None:
    """A condition that the other one can fulfil: a health check, or an end."""
    waited = {(other, how) for others in WAITS_FOR.values() for other, how in others.items()}
    for name, how in waited:
        service = COMPOSE["services"][name]
        assert (service["restart"] == "on-failure") == (how == DONE), name


def test_whoever_stays_says_whether_he_works() -> None:
    """But what has done its work ends."""
    for name, service in COMPOSE["services"].items():
        assert ("healthcheck" in service) == (service["restart"] == "unless-stopped"), name


def test_what_the_services_mount_is_there() -> None:
    for name, service in COMPOSE["services"].items():
        assert {config["source"] for config in service.get("configs", [])} <= set(COMPOSE["configs"]), name
        assert {volume.partition(":")[0] for volume in service.get("volumes", [])} <= set(COMPOSE["volumes"]), name


def test_the_pipeline_names_the_connections_that_airflow_is_given() -> None:
    config = load(ROOT / "include" / "sandbox" / "demo" / "in_containers" / "shop.yaml")
    named = (config.source_connection, config.ledger_connection, config.lake_connection, config.spark_connection)
    settings = COMPOSE["services"]["worker"]["environment"]
    for connection in named:
        assert f"AIRFLOW_CONN_{str(connection).upper()}" in settings
    assert settings["TIDEMARK_PIPELINES"].endswith("/include/sandbox/demo/in_containers")
    spark = json.loads(settings["AIRFLOW_CONN_SPARK_DEFAULT"])
    assert spark["host"] in COMPOSE["services"]["spark-worker-1"]["command"]


@pytest.mark.parametrize("service", COMPOSE["services"])
def test_every_image_is_built_here_or_named_by_its_digest(service: str) -> None:
    described = COMPOSE["services"][service]
    assert described.get("build") == "." or BY_DIGEST.fullmatch(described["image"])


def test_the_image_is_built_on_one_named_by_its_digest() -> None:
    bases = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert len(bases) == 1
    assert BY_DIGEST.fullmatch(bases[0])


def test_the_ui_asks_for_a_login_and_only_this_machine_reaches_it() -> None:
    settings = COMPOSE["services"]["api-server"]["environment"]
    assert settings["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] == "admin:admin", (
        "user and role; Airflow makes a password"
    )
    assert "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS" not in TEXT
    for service in COMPOSE["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_whatever_is_secret_comes_from_outside_the_file() -> None:
    """A key that everybody can read would let everybody sign a token, whatever the login."""
    secret = "${TIDEMARK_SECRET:?"
    settings = COMPOSE["services"]["scheduler"]["environment"]
    for name in ("AIRFLOW__API__SECRET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET"):
        assert settings[name].startswith(secret)
    for service, name in (
        ("source", "POSTGRES_PASSWORD"),
        ("ledger", "POSTGRES_PASSWORD"),
        ("shop", "PGPASSWORD"),
        ("s3", "AWS_ACCESS_KEY_ID"),
        ("s3", "AWS_SECRET_ACCESS_KEY"),
    ):
        assert COMPOSE["services"][service]["environment"][name].startswith(secret)
    names = (r'"(?:password|login)": "', "PASSWORD ", "PASSWORD: ", r"authenticate\.secret ")
    values = re.findall(rf"""(?:{"|".join(names)})([^",\s;}}]+}}?)""", TEXT)
    assert set(values) <= {"${TIDEMARK_SECRET}", "*secret", "*secret}", ":'secret'", "tidemark"}
    assert values.count("tidemark") == 2, "the logins of source and ledger"
    assert not any("password" in word.lower() for word in COMPOSE["services"]["shop"]["entrypoint"])


def test_nobody_starts_a_program_on_spark_without_the_secret() -> None:
    """Its server for submissions would take any, and ask for none."""
    settings = dict(line.split() for line in COMPOSE["configs"]["spark"]["content"].splitlines())
    assert settings["spark.authenticate"] == settings["spark.network.crypto.enabled"] == "true"
    assert settings["spark.master.rest.enabled"] == "false"
    with_spark = {name for name, service in COMPOSE["services"].items() if "spark" in name or name == "worker"}
    for name in with_spark:
        (mounted,) = COMPOSE["services"][name]["configs"]
        folder = COMPOSE["services"][name]["environment"]["SPARK_CONF_DIR"]
        assert mounted == {"source": "spark", "target": f"{folder}/spark-defaults.conf"}


@pytest.mark.parametrize("name", [".gitignore", ".dockerignore"])
def test_the_file_with_the_secret_goes_nowhere(name: str) -> None:
    assert ".env" in [line.lstrip("/") for line in (ROOT / name).read_text().splitlines()]
