from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.hand_staged import HandStaged, hand_staged
from tests.support.pipeline import Pipeline


@pytest.fixture
def capture(source: str, new_database: Callable[[str], str], tmp_path: Path) -> HandStaged:
    return hand_staged(source, new_database("ledger"), tmp_path / "lake")


@pytest.fixture
def orders(pipeline: Pipeline) -> Pipeline:
    """One drained table with one row, so that its first version and fingerprint are in the ledger."""
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10,2), note varchar(10))")
    pipeline.begin()
    pipeline.execute("INSERT INTO orders VALUES (1, 1.5, 'one')")
    pipeline.drain()
    return pipeline
