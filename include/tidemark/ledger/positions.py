"""How far each table is applied, as Delta's commits said, and from that how far the slot may be confirmed (R3).

Positions are end LSNs read back from Delta (`txnVersion`), per generation; here they only rise, so an old result that is
ingested late changes nothing. A batch makes no commit on a table it does not touch: a table therefore counts as applied up to
just before its next untreated batch, which is that batch's `start_lsn`, and up to staged where it has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from tidemark.lsn import Lsn


@dataclass(frozen=True, slots=True)
class Position:
    """`applied_lsn` is the lower of the two, None until both tables exist. A table without identity has no `current`: its
    history's position stands for both."""

    table: str
    history_lsn: Lsn | None
    current_lsn: Lsn | None
    applied_lsn: Lsn | None


def rise(
    connection: psycopg.Connection[Any],
    pipeline: str,
    generation: int,
    table: str,
    *,
    history_lsn: Lsn | None,
    current_lsn: Lsn | None,
) -> bool:
    """Raise the table's positions to these where they are higher. True if the applied position moved."""
    ...


def all_of(connection: psycopg.Connection[Any], pipeline: str, generation: int) -> dict[str, Position]:
    """The positions of the tables that have one in this generation."""
    ...


def applied(connection: psycopg.Connection[Any], pipeline: str) -> dict[str, Lsn]:
    """Per captured table, whatever its state, how far it counts as applied in the open generation."""
    ...


def confirmable(connection: psycopg.Connection[Any], pipeline: str) -> Lsn:
    """R3's minimum in the open generation: over the tables, applied, or staged where parked or deferred; staged without any."""
    ...


def held_back_by(connection: psycopg.Connection[Any], pipeline: str) -> dict[str, Lsn]:
    """The merging tables whose next untreated batch keeps `confirmable` below staged, with that batch's start."""
    ...
