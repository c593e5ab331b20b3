"""Writes Tidemark's messages into the WAL (watermarks around a chunk's SELECT, heartbeats) and recognises them (R7).

Any login may call `pg_logical_emit_message`, so Tidemark's prefix proves nothing. A message of another prefix or form
is recognised by its first bytes, before it is copied (`is_foreign`). Other messages are read field by field
(`formats.watermark`): a heartbeat counts only in the transaction that wrote it, a watermark only for a chunk that the
ledger has, and only if it was committed after that chunk's snapshot was taken.

Tidemark's messages are transactional. Each call is a separate transaction with a local commit: without its synchronous
standby, the server would otherwise wait forever, and `statement_timeout` does not end that wait. Source: PostgreSQL
documentation, 9.28.6 "Replication Management Functions", pg_logical_emit_message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from tidemark import strict_json
from tidemark.config import PipelineConfig
from tidemark.formats import definition
from tidemark.formats.watermark import LONGEST_BYTES, Watermark
from tidemark.lsn import Lsn, WalPoint
from tidemark.pgoutput.messages import LogicalMessage, parse_logical
from tidemark.postgres.postgres_session import one_row

PREFIX: Final = "tidemark"
# Of a message that says nothing: its commit is what counts.
DURABLE_PREFIX: Final = "tidemark_durable"

# Grammar: pgoutput.messages. The kind, flags (1 = transactional), the LSN, the prefix with its zero byte, the length.
LOGICAL_MESSAGE: Final = ord("M")
_PREFIX_AT: Final = 10
# How long ours are, by prefix.
_LONGEST: Final = {
    PREFIX.encode() + b"\0": LONGEST_BYTES,
    definition.PREFIX.encode() + b"\0": definition.LONGEST_BYTES,
}
_TRANSACTIONAL: Final = b"\1"
_LENGTH_BYTES: Final = 4

_COMMIT_LOCALLY: Final = "SET LOCAL synchronous_commit = local"
_EMIT: Final = "SELECT pg_logical_emit_message(true, %s, %s::text)::text"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The run's own message. `content` is compared byte for byte when the stream returns it. A reader of the stream
    may write the same content again, so it only counts in transaction `xid`."""

    content: bytes
    xid: int
    after_lsn: Lsn

    def is_in(self, message: LogicalMessage) -> bool:
        return message.xid == self.xid and message.prefix == PREFIX and message.content == self.content


def is_foreign(message: memoryview, skip: int) -> bool:
    """Whether the payload is a logical message that cannot be Tidemark's: another prefix, not transactional, or too
    long. `skip` bytes precede the message; nothing is copied."""
    head = message[skip : skip + _PREFIX_AT + max(map(len, _LONGEST))].tobytes()
    return head[0] == LOGICAL_MESSAGE and not (
        head[1:2] == _TRANSACTIONAL
        and any(
            head[_PREFIX_AT:].startswith(prefix)
            and len(message) <= skip + _PREFIX_AT + len(prefix) + _LENGTH_BYTES + longest
            for prefix, longest in _LONGEST.items()
        )
    )


def is_quiet(payload: bytes, skip: int, pipeline: str) -> bool:
    """Whether the payload changes nothing for the pipeline: a transaction's begin, end or origin, a heartbeat, or
    another pipeline's watermark. `skip` bytes precede the message."""
    kind = payload[skip : skip + 1]
    if kind != b"M":
        return kind in (b"B", b"C", b"O")
    message = parse_logical(payload[skip:], Lsn(0), 0)
    try:
        content = strict_json.parse(message.content)
    except ValueError:
        return False
    if message.prefix != PREFIX or not isinstance(content, dict):
        return False
    return content.get("kind") == "heartbeat" or content.get("pipeline") != pipeline


def emit(conn: psycopg.Connection[Any], watermark: Watermark) -> Lsn:
    """Write the message. The returned LSN is for the audit only; a watermark is recognised by its content."""
    with conn.transaction():
        conn.execute(_COMMIT_LOCALLY)
        return Lsn.parse(one_row(conn, _EMIT, (PREFIX, watermark.content()))[0])


def emit_all(conn: psycopg.Connection[Any], watermarks: Sequence[Watermark]) -> None:
    """Write the messages in one transaction; none if there are none."""
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
        (xid,) = one_row(conn, "SELECT pg_current_xact_id()::text::bigint")
    (after_lsn,) = one_row(conn, "SELECT pg_current_wal_flush_lsn()::text")
    return Heartbeat(content.encode(), xid, Lsn.parse(after_lsn))


# The timeline is that of the segment which is written now; see `source.wal.slot`.
_WRITTEN: Final = """
    SELECT ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int,
           pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()
"""


def make_durable(conn: psycopg.Connection[Any]) -> WalPoint:
    """Make everything that a snapshot of this session has seen durable. Returns the LSN where that ends.

    A snapshot sees a transaction as soon as its commit record is inserted. With `synchronous_commit = off` a crash may
    lose it after that, and its id is given out again. So call this before a snapshot or an id is kept for longer than
    its session. Afterwards no crash of this server loses what the snapshot saw, and a standby has it exactly if its
    history has this point. docs/decisions/2026-11-22-a-snapshot-stands-on-its-wal.md has the proof. The session must be
    in autocommit mode and outside of a transaction.
    """
    timeline, inserted_lsn, is_durable = one_row(conn, _WRITTEN)
    if not is_durable:
        # The commit of a transaction that wrote waits for all WAL below its record. An id alone would not.
        with conn.transaction():
            conn.execute(_COMMIT_LOCALLY)
            conn.execute(_EMIT, (DURABLE_PREFIX, ""))
    return WalPoint(timeline, Lsn.parse(inserted_lsn))
