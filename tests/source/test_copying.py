"""Rows of a COPY, from a session that is lost."""

from __future__ import annotations

import os
import socket

import psycopg
import pytest
from psycopg import sql

from sandbox.services.postgres import PostgresServer
from tidemark.errors import DatabaseUnreachable
from tidemark.postgres import postgres_session
from tidemark.source.rows.copying import BLOCK_BYTES, copy_rows

ROWS = sql.SQL("SELECT repeat('x', 1000) FROM generate_series(1, {}) AS n")


@pytest.mark.parametrize("blocks_before", [0, 1])
def test_a_connection_that_is_lost_is_an_outage(postgres: PostgresServer, blocks_before: int) -> None:
    """Before the COPY begins, and among its rows."""
    query = sql.Composed([ROWS.format(20 * BLOCK_BYTES // 1000)])
    with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
        blocks = copy_rows(connection, query)
        for _ in range(blocks_before):
            next(blocks)
        with socket.socket(fileno=os.dup(connection.pgconn.socket)) as shared:
            shared.shutdown(socket.SHUT_RDWR)
        with pytest.raises(DatabaseUnreachable), postgres_session.outages():
            for _ in blocks:
                pass
