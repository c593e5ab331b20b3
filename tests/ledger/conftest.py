"""A migrated ledger with one pipeline, "shop", whose first generation is open at 0/64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.manifests import SOURCE
from tidemark.errors import TidemarkError
from tidemark.formats import layout
from tidemark.formats.generation_file import GenerationFile
from tidemark.ledger import leases
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.leases import SLOT, Lease
from tidemark.ledger.migrations import migrate
from tidemark.ledger.staged import generations
from tidemark.lsn import Lsn
from tidemark.storage.store import Store

START = Lsn(100)


@pytest.fixture
def ledger(ledger_database: str) -> str:
    migrate(ledger_database)
    return ledger_database


@pytest.fixture
def book(ledger: str) -> Iterator[Ledger]:
    with open_ledger(ledger, "shop") as book:
        yield book


@pytest.fixture
def lease(ledger: str) -> Iterator[Lease]:
    with leases.hold(ledger, "shop", SLOT, "drain/1") as held:
        yield held


@pytest.fixture
def generation(book: Ledger, lease: Lease) -> generations.Generation:
    return open_at(book, lease, 1, START)


def open_at(
    book: Ledger,
    lease: Lease,
    number: int,
    start: Lsn,
    backfill_kind: str | None = None,
    error: TidemarkError | None = None,
    lake: str | None = None,
) -> generations.Generation:
    """With a lake its file too, which whoever writes there looks for."""
    opening = GenerationFile(
        pipeline=lease.pipeline,
        number=number,
        system_identifier=SOURCE.system_identifier,
        timeline=SOURCE.timeline,
        slot=SOURCE.slot,
        start_lsn=start,
        opened_at="2026-01-02T03:04:05+00:00",
        reason="a test opened it",
        backfill_kind=backfill_kind,
        error=None if error is None else error.as_facts(),
    )
    if lake is not None:
        Store(lake).write_new(layout.generation_file(lease.pipeline, number), opening.to_json().encode())
    return generations.open_generation(book, lease, opening)
