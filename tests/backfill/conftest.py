"""Sessions that wait for each other."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tidemark.backfill import keyless_tables


@pytest.fixture
def all_sessions_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the two sessions that read a table without key, none goes on before each has its first stretch: else one may
    read all of it before the other is there."""
    first, seen, real = threading.Barrier(2, timeout=60), threading.local(), keyless_tables.key_ranges.stretch_query

    def stretch_query(*arguments: Any) -> Any:
        if not hasattr(seen, "one"):
            seen.one = True
            first.wait()
        return real(*arguments)

    monkeypatch.setattr(keyless_tables.key_ranges, "stretch_query", stretch_query)
