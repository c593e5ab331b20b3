"""What merging reads and writes is the ledger: its fixtures are those of the ledger's own tests."""

from __future__ import annotations

from tests.ledger.conftest import book, generation, lease, ledger

__all__ = ["book", "generation", "lease", "ledger"]
