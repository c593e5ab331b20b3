"""Whom a session talks to, as far as libpq's parameters say it."""

from __future__ import annotations

import pytest

from tidemark.postgres.postgres_session import unverified


@pytest.mark.parametrize("host", ["", "/var/run/postgresql", "@abstract", "localhost", "127.0.0.1", "127.8.0.3", "::1"])
def test_nothing_is_between_here_and_here(host: str) -> None:
    assert unverified(host, {"sslmode": "disable"}) is None


@pytest.mark.parametrize("host", ["db.example.com", "10.0.0.7", "fe80::1%eth0", "localhost.example.com"])
def test_only_verify_full_makes_sure_of_another_machine(host: str) -> None:
    assert unverified(host, {"sslmode": "verify-full"}) is None
    for sslmode in ("disable", "allow", "prefer", "require", "verify-ca"):
        assert unverified(host, {"sslmode": sslmode}) == sslmode
    assert unverified(host, {}) == "prefer"
