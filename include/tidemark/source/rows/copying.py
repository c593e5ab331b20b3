"""Runs `COPY (query) TO STDOUT (FORMAT binary)` and returns the server's messages, one per row, in blocks.

It calls libpq directly, as `replication` does, because psycopg's Copy object costs more per row than the decoding. If
the statement fails, the server sends the error after rows, so the rows are only valid once the last block was taken.
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

# The longest wait for the server before Python can handle a signal.
_WAIT_MS: Final = 1000


def copy_rows(conn: psycopg.Connection[Any], query: sql.Composed) -> Iterator[list[bytes]]:
    """Yield the messages in blocks of about BLOCK_BYTES; a single row may be larger. Raises psycopg's errors. A
    caller that does not take all blocks must close the connection."""
    statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(query).as_bytes(conn)
    pgconn = conn.pgconn
    as_they_are = conn.info.parameter_status("server_encoding") == "SQL_ASCII"
    if as_they_are:
        # Such a database stores any bytes. With client encoding UTF8 the server would raise for bytes that are not
        # UTF-8; the stream contains them too.
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
    # All results are fetched before an error is raised, because a ROLLBACK fails while the statement has not ended.
    results = iter(pgconn.get_result, None)
    errors = [from_result(ended) for ended in results if ended.status != pq.ExecStatus.COMMAND_OK]
    if errors:
        raise errors[0]
    if as_they_are:
        conn.execute("SET LOCAL client_encoding = 'UTF8'")
    if block:
        yield block
