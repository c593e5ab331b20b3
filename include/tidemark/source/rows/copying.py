"""Runs `COPY (query) TO STDOUT (FORMAT binary)` and returns the server's messages, one per row, in blocks.

libpq's own calls, as `replication` uses them: psycopg's Copy object costs more per row than the decoding does. The
server ends a statement that fails with an error behind the rows, so nothing counts until the last block was taken.
Source: PostgreSQL documentation, 32.10 "Functions Associated with the COPY Command".
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Any, Final

import psycopg
from psycopg import pq, sql

from tidemark.postgres.redaction import from_result

BLOCK_BYTES: Final = 8 * 2**20

# How long one wait for the server may last before Python gets to see a signal.
_WAIT_MS: Final = 1000


def copy_rows(conn: psycopg.Connection[Any], query: sql.Composed) -> Iterator[list[bytes]]:
    """Blocks of about BLOCK_BYTES; a single row may be larger. Raises psycopg's errors. Whoever does not take all
    of them has to close the connection."""
    statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(query).as_bytes(conn)
    pgconn = conn.pgconn
    as_they_are = conn.info.parameter_status("server_encoding") == "SQL_ASCII"
    if as_they_are:
        # It stores any bytes, and as UTF-8 it would refuse to send those that are none; the stream has them too.
        conn.execute("SET LOCAL client_encoding = 'SQL_ASCII'")
    begun = pgconn.exec_(statement)
    if begun.status != pq.ExecStatus.COPY_OUT:
        raise from_result(begun)
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    get = pgconn.get_copy_data
    block: list[bytes] = []
    size = 0
    while True:
        length, data = get(1)
        if length > 0:
            block.append(bytes(data))
            size += length
            if size >= BLOCK_BYTES:
                yield block
                block, size = [], 0
        elif length == 0:
            poll.poll(_WAIT_MS)
            pgconn.consume_input()
        else:
            break
    # All of them are fetched before one is raised: a ROLLBACK behind a statement that has not ended fails too.
    results = iter(pgconn.get_result, None)
    errors = [from_result(ended) for ended in results if ended.status != pq.ExecStatus.COMMAND_OK]
    if errors:
        raise errors[0]
    if as_they_are:
        conn.execute("SET LOCAL client_encoding = 'UTF8'")
    if block:
        yield block
