from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.hand_staged import HandStaged, hand_staged


@pytest.fixture
def capture(source: str, new_database: Callable[[str], str], tmp_path: Path) -> HandStaged:
    return hand_staged(source, new_database("ledger"), tmp_path / "lake")
