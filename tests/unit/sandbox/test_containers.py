"""The container trial: images by digest, a login, and no secret in its text."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from sandbox.checkout import this_checkout

ROOT = this_checkout().root
TEXT = (ROOT / "docker-compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
BY_DIGEST = re.compile(r"[a-z0-9./-]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}")


@pytest.mark.parametrize("service", COMPOSE["services"])
def test_every_image_is_built_here_or_named_by_its_digest(service: str) -> None:
    definition = COMPOSE["services"][service]
    assert definition.get("build") == "." or BY_DIGEST.fullmatch(definition["image"])


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
    for name in ("AIRFLOW__API__SECRET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET", "PGPASSWORD"):
        assert settings[name].startswith(secret)
    assert COMPOSE["services"]["postgres"]["environment"]["POSTGRES_PASSWORD"].startswith(secret)
    values = re.findall(r'(?:"password": "|PASSWORD: )([^",\s]+)', TEXT)
    assert len(values) == 4
    assert set(values) <= {"${TIDEMARK_SECRET}", "*secret"}
    assert not any("PASSWORD" in word or "password" in word for word in COMPOSE["services"]["shop"]["entrypoint"])


@pytest.mark.parametrize("name", [".gitignore", ".dockerignore"])
def test_the_file_with_the_secret_goes_nowhere(name: str) -> None:
    assert ".env" in [line.lstrip("/") for line in (ROOT / name).read_text().splitlines()]
