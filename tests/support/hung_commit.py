"""A transaction whose commit record is in the WAL and which nobody sees yet, for as long as a test wants.

PostgreSQL makes a commit wait for its synchronous standby after the record is flushed, and before the transaction
becomes visible. On a server that waits for a standby which never comes (`SERVER_SETTINGS`), a session that asks for it
hangs there; cancelling its wait makes the transaction visible. Everybody else commits locally, by default.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import psycopg

from sandbox.services.postgres import wait_for

SERVER_SETTINGS = {"synchronous_standby_names": "nobody", "synchronous_commit": "local"}


class HungCommit:
    """Runs the statements as one transaction and returns once its commit hangs; `release` lets it become visible.

    With a connection of its own that is given, what it has open is committed so.
    """

    def __init__(
        self, conninfo: str, statements: Iterable[str], connection: psycopg.Connection[Any] | None = None
    ) -> None:
        self._conninfo = conninfo
        self._is_own = connection is None
        self._connection = connection or psycopg.connect(conninfo, autocommit=True)
        self.pid = self._connection.info.backend_pid
        if self._is_own:
            self._connection.execute("BEGIN")
        for statement in statements:
            self._connection.execute(statement.encode())
        self._connection.execute("SET LOCAL synchronous_commit = on")
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._commit, daemon=True)
        self._thread.start()
        wait_for("the commit to hang", self._hangs)

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except BaseException as failed:
            self._failure = failed

    def _hangs(self) -> bool:
        if not self._thread.is_alive():
            raise AssertionError(f"the commit did not hang: {self._failure}")
        return _look(self._conninfo, "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = %s", self.pid)

    def release(self) -> None:
        """Make the transaction visible."""
        wait_for("the wait to be cancelled", self._cancelled)
        if self._is_own:
            self._connection.close()

    def _cancelled(self) -> bool:
        if self._thread.is_alive():
            _look(self._conninfo, "SELECT pg_cancel_backend(%s)", self.pid)
            self._thread.join(0.2)
        return not self._thread.is_alive()


def _look(conninfo: str, query: str, value: Any) -> bool:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute(query.encode(), (value,)).fetchone()
        return bool(row and row[0])
