"""Plays concurrent transactions over lists and registers, at every isolation level, and reads their commit order.

Several sessions append their transactions' numbers to lists and set registers to them, of few keys, so that they meet.
Some roll back, below a savepoint or as a whole; what PostgreSQL refuses (serialization failures, deadlocks) is rolled
back too. The commit order is PostgreSQL's own: a slot beside Tidemark's lists the transactions in it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Final

import psycopg
from psycopg import IsolationLevel

from tests.lake.consistent_sets import Committed
from tests.support.capture import Environment
from tidemark.lsn import Lsn

LISTS, REGISTERS = "c.lists", "c.registers"
KEYS: Final = 6
LEVELS: Final = (IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE)
# Between two transactions of a session, at most.
_PAUSE_S: Final = 0.2
_PROBE: Final = "probe"
_REFUSED: Final = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)


class _RolledBack(Exception):
    """On purpose."""


@dataclass
class Workload:
    """`played` has by transaction id what a transaction did; `ended` counts how they ended, by level."""

    environment: Environment
    seed: int
    played: dict[int, Committed] = field(default_factory=dict)
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    stop: threading.Event = field(default_factory=threading.Event)

    def create(self) -> None:
        """Before the capture begins: tables without rows."""
        self.environment.execute(
            "CREATE SCHEMA c",
            f"CREATE TABLE {LISTS} (id int PRIMARY KEY, items int[] NOT NULL)",
            f"CREATE TABLE {REGISTERS} (id int PRIMARY KEY, value int NOT NULL)",
        )

    def begin(self) -> None:
        """Behind the first run: every key gets its row, and the commit order is watched from here on."""
        self.environment.query(f"SELECT pg_create_logical_replication_slot('{_PROBE}', 'pgoutput')")
        self.environment.execute(
            f"BEGIN; INSERT INTO {LISTS} SELECT k, '{{}}' FROM generate_series(1, {KEYS}) k;"
            f"INSERT INTO {REGISTERS} SELECT k, 0 FROM generate_series(1, {KEYS}) k; COMMIT"
        )

    @contextmanager
    def at_work(self, sessions: int) -> Iterator[None]:
        """Sessions at work, the levels in turn, until the block ends."""
        threads = [threading.Thread(target=self._session, args=(number,)) for number in range(1, sessions + 1)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()

    def is_worth_reading(self) -> bool:
        """Whether transactions of every level committed, some were refused, and some rolled back."""
        ended = list(self.ended)
        committed = {level for level, how in ended if how == "committed"}
        return committed == {level.name for level in LEVELS} and {"refused", "rolled back"} <= {how for _, how in ended}

    def order(self) -> list[tuple[Lsn, Committed]]:
        """What committed, with the LSN of each commit record, as the first bytes of pgoutput's Begin have it."""
        rows = self.environment.query(
            f"SELECT xid::text::bigint, data FROM pg_logical_slot_peek_binary_changes('{_PROBE}', NULL, NULL, "
            f"'proto_version', '1', 'publication_names', '{self.environment.config.publication}')"
        )
        begun = [(xid, Lsn(int.from_bytes(data[1:9], "big"))) for xid, data in rows if data[:1] == b"B"]
        return [(lsn, self.played[xid]) for xid, lsn in begun if xid in self.played]

    def close(self) -> None:
        self.environment.query(f"SELECT pg_drop_replication_slot('{_PROBE}')")

    def _session(self, session: int) -> None:
        random = Random(f"{self.seed} {session}")
        level = LEVELS[session % len(LEVELS)]
        with psycopg.connect(self.environment.source) as connection:
            connection.isolation_level = level
            for number in count(session * 1_000_000):
                if self.stop.wait(random.random() * _PAUSE_S):
                    return
                ended = self._transaction(connection, random, number, session)
                self.ended[level.name, ended] += 1

    def _transaction(
        self, connection: psycopg.Connection[tuple[object, ...]], random: Random, number: int, session: int
    ) -> str:
        appended = frozenset(random.sample(range(1, KEYS + 1), random.randint(1, 3)))
        written = frozenset(random.sample(range(1, KEYS + 1), random.randint(0, 2)))
        acts = [(LISTS, key) for key in appended] + [(REGISTERS, key) for key in written]
        random.shuffle(acts)
        fate = random.random()
        try:
            with connection.transaction():
                connection.execute(f"SELECT * FROM {REGISTERS}".encode())
                for table, key in acts:
                    change = "items = items || %s" if table == LISTS else "value = %s"
                    connection.execute(f"UPDATE {table} SET {change} WHERE id = %s".encode(), (number, key))
                    if fate < 0.2:
                        self._below_a_savepoint(connection, random, number)
                    if random.random() < 0.3:
                        connection.execute("SELECT pg_sleep(0.001)")
                row = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
                assert row is not None
                xid = int(str(row[0]))
                if fate > 0.9:
                    raise _RolledBack
                # Before its commit, so that whoever reads the order behind that finds it.
                self.played[xid % 2**32] = Committed(number, session, appended, written)
        except _RolledBack:
            return "rolled back"
        except _REFUSED:
            return "refused"
        return "committed"

    @staticmethod
    def _below_a_savepoint(connection: psycopg.Connection[tuple[object, ...]], random: Random, number: int) -> None:
        """Writes that nobody may ever see."""
        try:
            with connection.transaction():
                key = random.randint(1, KEYS)
                connection.execute(f"UPDATE {LISTS} SET items = items || %s WHERE id = %s".encode(), (-number, key))
                connection.execute(f"UPDATE {REGISTERS} SET value = %s WHERE id = %s".encode(), (-number, key))
                raise _RolledBack
        except _RolledBack:
            return
