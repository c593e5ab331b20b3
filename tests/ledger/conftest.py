"""A migrated ledger with one pipeline, "shop", whose first generation is open at 0/64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.manifests import SOURCE
from tidemark.ledger import generations, leases
from tidemark.ledger.connection import connect
from tidemark.ledger.leases import SLOT, Lease
from tidemark.ledger.migrations import migrate
from tidemark.lsn import Lsn

START = Lsn(100)


@pytest.fixture
def ledger(ledger_database: str) -> str:
    migrate(ledger_database)
    return ledger_database


@pytest.fixture
def book(ledger: str) -> Iterator[psycopg.Connection[Any]]:
    with connect(ledger) as connection:
        yield connection


@pytest.fixture
def lease(ledger: str) -> Iterator[Lease]:
    with leases.hold(ledger, "shop", SLOT, "drain/1") as held:
        yield held


@pytest.fixture
def generation(book: psycopg.Connection[Any], lease: Lease) -> generations.Generation:
    return open_at(book, lease, 1, START)


def open_at(
    book: psycopg.Connection[Any], lease: Lease, number: int, start: Lsn, **more: Any
) -> generations.Generation:
    return generations.open_generation(
        book,
        lease,
        number=number,
        system_identifier=SOURCE.system_identifier,
        timeline=SOURCE.timeline,
        slot=SOURCE.slot,
        start_lsn=start,
        reason="a test opened it",
        **more,
    )
