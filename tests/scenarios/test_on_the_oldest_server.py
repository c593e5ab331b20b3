"""Scenarios of which PostgreSQL 16 differs from 18 in what it accepts or writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.services.postgres import PostgresServer
from tests.support import scenario
from tests.support.capture import Environment
from tests.support.playing import play, rules

pytestmark = pytest.mark.thorough

NAMES = ("partition_unlogged", "partition_created_unlogged", "partition_unlogged_beside_a_new_column")


@pytest.mark.parametrize("name", NAMES)
def test_scenario(name: str, postgres16: PostgresServer, new_environment: Callable[..., Environment]) -> None:
    read = scenario.read(Path(__file__).parent / f"{name}.sql")
    outcome = play(new_environment(name, rules(read), read.bounds, server=postgres16), [read])
    if (failed := outcome[name]) is not None:
        raise failed
