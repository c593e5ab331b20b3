"""The transactional messages around a chunk's SELECT (R7): `Watermark` -> the source's WAL.

Each is committed in a transaction of its own, and locally: with a synchronous standby away it would hang for ever, and
`statement_timeout` does not end that wait.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from tidemark.formats.watermark import Watermark
from tidemark.lsn import Lsn

PREFIX: Final = "tidemark"


def emit(conn: psycopg.Connection[Any], watermark: Watermark) -> Lsn:
    """Write the message; the LSN serves the audit alone, a watermark is recognised by its content."""
    with conn.transaction():
        conn.execute("SET LOCAL synchronous_commit = local")
        row = conn.execute(
            "SELECT pg_logical_emit_message(true, %s, %s::text)::text", (PREFIX, watermark.content())
        ).fetchone()
    assert row is not None
    return Lsn.parse(row[0])
