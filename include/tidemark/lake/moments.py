"""Turns a time into a position in the order of commits, and parses positions (R1).

The state at position (generation, LSN) has every transaction of an older generation, and those of this generation whose
commit record begins below the LSN: half-open, as a batch is (R2). So the result of `pg_current_wal_flush_lsn()` is the
position of everything that was committed when it was called. A row's own `_commit_lsn` is the moment before that row.

Commit times do not rise with commit LSNs: PostgreSQL takes the time before it writes the record, and a clock can be set
back. So the state at a time is the longest beginning of the order of commits in which nothing was committed after that
time. It is always a state that the source had, and never half a transaction.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from tidemark.errors import MomentInvalid
from tidemark.lsn import Lsn


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A position in the order of commits: after every transaction of older generations and those of this one that
    committed below `lsn`."""

    generation: int
    lsn: Lsn

    def __str__(self) -> str:
        return f"{self.lsn} of generation {self.generation}"


# What `as_of` takes; an LSN is one of the newest generation.
Moment: TypeAlias = Position | Lsn | int | str | datetime


def parse(text: str) -> Lsn | datetime:
    """A moment from a form or a file: an LSN, or a time in ISO 8601 with its zone. Raises MomentInvalid."""
    with suppress(ValueError):
        return Lsn.parse(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise MomentInvalid(moment=text, reason="it is neither an LSN nor a time") from None
    if time.tzinfo is None:
        raise MomentInvalid(moment=text, reason="a time needs its zone")
    return time


def read(moment: Moment, newest_generation: int) -> Position | datetime:
    """Raises MomentInvalid for a text that is no LSN, and for a time without a zone."""
    if isinstance(moment, Position):
        return moment
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise MomentInvalid(moment=moment.isoformat(), reason="a time needs its zone")
        return moment
    try:
        return Position(newest_generation, Lsn.parse(moment) if isinstance(moment, str) else Lsn(moment))
    except ValueError:
        raise MomentInvalid(moment=str(moment), reason="it is not an LSN") from None
