"""What merging reads and writes is the ledger: its fixtures are those of the ledger. The lake is `tmp_path`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ledger.conftest import START, book, lease, ledger, open_at
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import Lease
from tidemark.ledger.staged.generations import Generation

__all__ = ["book", "lease", "ledger"]


@pytest.fixture
def generation(book: Ledger, lease: Lease, tmp_path: Path) -> Generation:
    return open_at(book, lease, 1, START, lake=str(tmp_path))
