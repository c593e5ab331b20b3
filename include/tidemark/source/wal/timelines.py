"""Reads the history of a server's WAL: its timelines and where each began -> `History`.

Every promotion and every recovery to a moment begins a timeline, whose number is the next one that the server knows of.
So two servers may both be on timeline 2 and have left timeline 1 at different places: compare histories, not numbers.
Two histories have all WAL in common below the LSN at which the first of them left the other (`parted_at`), and nothing
above it. Source: PostgreSQL documentation, 26.3.6 "Timelines", 54.4 "Streaming Replication Protocol", TIMELINE_HISTORY.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import pq

from tidemark.lsn import Lsn
from tidemark.postgres.postgres_session import open_session, to_the_same_server

_NEVER: Final = 2**64


@dataclass(frozen=True, slots=True)
class History:
    """`left` are the timelines before `timeline`, in order, each with the LSN where the next one began."""

    timeline: int
    left: tuple[tuple[int, Lsn], ...] = ()

    def __str__(self) -> str:
        return ", ".join([*(f"{timeline} to {lsn}" for timeline, lsn in self.left), str(self.timeline)])

    @classmethod
    def parse(cls, text: str) -> History:
        """Parse the result of str(). Raises ValueError for other text."""
        *left, timeline = text.split(", ")
        pairs = [entry.split(" to ") for entry in left]
        return cls(int(timeline), tuple((int(earlier), Lsn.parse(lsn)) for earlier, lsn in pairs))

    def parted_at(self, other: History) -> Lsn | None:
        """The end of the WAL that both histories share; None if one history contains the other."""
        for (ours, ours_to), (theirs, theirs_to) in zip(self._stretches, other._stretches, strict=False):
            if ours != theirs:
                return Lsn(0)
            if ours_to != theirs_to:
                return Lsn(min(ours_to, theirs_to))
        return None

    @property
    def _stretches(self) -> tuple[tuple[int, int], ...]:
        return (*self.left, (self.timeline, _NEVER))


def read_history(connection: psycopg.Connection[Any], timeline: int) -> History:
    """The history of the server's timeline.

    Read over a separate walsender: only the replication protocol's TIMELINE_HISTORY shows it to every role that may
    replicate.
    """
    if timeline == 1:
        return History(1)
    with open_session(to_the_same_server(connection, replication="database"), "source") as walsender:
        result = walsender.pgconn.exec_(f"TIMELINE_HISTORY {timeline}".encode())
        if result.status != pq.ExecStatus.TUPLES_OK:
            return History(timeline)
        content = result.get_value(0, 1) or b""
    return History(timeline, tuple(_switches(content)))


def _switches(content: bytes) -> Iterator[tuple[int, Lsn]]:
    """Each line of the file has timeline, tab, LSN where the next one began, tab, reason. The reason may name a restore
    point, in any encoding. The server ignores empty lines and comments; an administrator may have written some."""
    for line in content.split(b"\n"):
        fields = line.split(b"\t")
        if len(fields) >= 2 and not line.lstrip().startswith(b"#"):
            yield int(fields[0]), Lsn.parse(fields[1].decode())
