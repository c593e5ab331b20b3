"""Every message that Tidemark writes into the source's WAL: `Watermark`s around a chunk's SELECT (R7), and the
heartbeat that ends a run.

All are transactional, each call is a transaction of its own, and it is committed locally: with a synchronous standby
away it would hang for ever, and `statement_timeout` does not end that wait. Source: PostgreSQL documentation, 9.28.6
"Replication Management Functions", pg_logical_emit_message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from tidemark.config import PipelineConfig
from tidemark.formats.watermark import Watermark
from tidemark.lsn import Lsn
from tidemark.pgoutput.messages import LogicalMessage

PREFIX: Final = "tidemark"

_COMMIT_LOCALLY: Final = "SET LOCAL synchronous_commit = local"
_EMIT: Final = "SELECT pg_logical_emit_message(true, %s, %s::text)::text"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What the run's own message says; `content` is compared byte for byte when it comes back."""

    content: bytes
    after_lsn: Lsn

    def is_in(self, message: LogicalMessage) -> bool:
        return message.transactional and message.prefix == PREFIX and message.content == self.content


def emit(conn: psycopg.Connection[Any], watermark: Watermark) -> Lsn:
    """Write the message; the LSN serves the audit alone, a watermark is recognised by its content."""
    with conn.transaction():
        conn.execute(_COMMIT_LOCALLY)
        row = conn.execute(_EMIT, (PREFIX, watermark.content())).fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def emit_all(conn: psycopg.Connection[Any], watermarks: Sequence[Watermark]) -> None:
    """Write them in one transaction, none where there are none."""
    if not watermarks:
        return
    with conn.transaction():
        conn.execute(_COMMIT_LOCALLY)
        conn.execute(
            "SELECT pg_logical_emit_message(true, %s, content) FROM unnest(%s::text[]) AS content",
            (PREFIX, [watermark.content() for watermark in watermarks]),
        )


def emit_heartbeat(conn: psycopg.Connection[Any], config: PipelineConfig, generation: int, attempt: str) -> Heartbeat:
    """Write the message that ends this run."""
    content = json.dumps(
        {"kind": "heartbeat", "pipeline": config.pipeline, "generation": generation, "attempt": attempt}
    )
    with conn.transaction():
        conn.execute(_COMMIT_LOCALLY)
        conn.execute(_EMIT, (PREFIX, content))
    row = conn.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return Heartbeat(content.encode(), Lsn.parse(row[0]))
