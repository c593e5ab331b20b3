"""A seeded random workload: tables of every identity, and transactions of random changes on few keys, so that they
collide. With tables of `altering`, definitions change among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

import psycopg

from tests.simulation.altering import Altered
from tests.support.capture import Environment
from tidemark.config import TableRule

SCHEMA = "sim"
_UNLESS_TAKEN = "ON CONFLICT DO NOTHING"
TABLES = tuple(
    TableRule(f"{SCHEMA}.{name}") for name in ("plain", "pair", "whole", "bag", "named", "log", "parts", "moment")
)

_CREATE = f"""
CREATE SCHEMA {SCHEMA};
SET search_path = {SCHEMA};
CREATE TABLE plain (id int PRIMARY KEY, a text, n numeric(12,2),
  body text STORAGE EXTERNAL, more text STORAGE EXTERNAL);
CREATE TABLE pair (x int, y text, v float8, body text STORAGE EXTERNAL, PRIMARY KEY (y, x));
CREATE TABLE whole (id int PRIMARY KEY, a text, n numeric(12,2),
  body text STORAGE EXTERNAL, more text STORAGE EXTERNAL);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE bag (a text, v float8, body text STORAGE EXTERNAL);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE named (id int PRIMARY KEY, a text NOT NULL, n int, body text STORAGE EXTERNAL);
CREATE UNIQUE INDEX named_a ON named (a);
ALTER TABLE named REPLICA IDENTITY USING INDEX named_a;
CREATE TABLE log (at int, what text);
CREATE TABLE parts (id int PRIMARY KEY, a text, body text STORAGE EXTERNAL) PARTITION BY HASH (id);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE moment (at timestamptz, day date, j jsonb, l int[], b bytea, PRIMARY KEY (day, at));
"""


def create(environment: Environment) -> None:
    create_tables(environment)
    environment.run()


def create_tables(environment: Environment) -> None:
    for statement in _CREATE.strip().split(";\n"):
        environment.execute(statement)


@dataclass(slots=True)
class Workload:
    """Random transactions in up to three sessions; a transaction that fails (a key that is taken) is rolled back."""

    environment: Environment
    random: Random
    name: str = "session"
    altered: Altered | None = None
    alterations: float = 0.06  # of all statements

    def some(self, transactions: int) -> None:
        for _ in range(transactions):
            self.transaction(f"{self.name} {self.random.randrange(3)}")

    def changes(self, count: int) -> list[str]:
        """So many random statements, for a transaction that the caller runs."""
        return [f"SET LOCAL search_path = {SCHEMA}", *[self.random.choice(self._changes())() for _ in range(count)]]

    def transaction(self, session: str) -> None:
        """One transaction, sometimes with savepoints, sometimes rolled back, sometimes left open for a while."""
        try:
            if self._is_open(session):
                self._run(session, "COMMIT" if self.random.random() < 0.8 else "ROLLBACK")
                return
            self._run(session, f"SET search_path = {SCHEMA}; SET lock_timeout = '100ms'")
            self._run(session, "BEGIN")
            for statement in self._statements(session):
                self._run(session, statement)
            # An ALTER holds up every look at its table: rarely for long.
            is_altering = self.altered is not None and self.altered.takes_locks(session)
            chance = self.random.random() * (0.91 if is_altering else 1)
            if chance < 0.75:
                self._run(session, "COMMIT")
            elif chance < 0.9:
                self._run(session, "ROLLBACK")
        except psycopg.Error:
            self._run(session, "ROLLBACK")

    def settle(self) -> None:
        """End every transaction of this workload that is still open: the source can then be compared."""
        for session, connection in list(self.environment.sessions.items()):
            if (
                session.startswith(f"{self.name} ")
                and connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE
            ):
                self._run(session, "ROLLBACK")

    def _run(self, session: str, statement: str) -> None:
        self.environment.execute(statement, session=session)

    def _is_open(self, session: str) -> bool:
        connection = self.environment.sessions.get(session)
        return connection is not None and connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE

    def _statements(self, session: str) -> Iterator[str]:
        savepoints, is_below = 0, False
        for _ in range(self.random.randint(1, 6)):
            chance = self.random.random()
            if chance < 0.1:
                savepoints += 1
                is_below = True
                yield f"SAVEPOINT s{savepoints}"
            elif chance < 0.16 and savepoints:
                yield f"ROLLBACK TO s{self.random.randint(1, savepoints)}"
                savepoints = 0
            elif self.altered is not None and chance < 0.16 + self.alterations:
                yield self.altered.alteration(session)
            elif self.altered is not None and chance < 0.45:
                yield self.altered.change(session)
            else:
                yield self.random.choice(self._changes(is_below))()

    def _changes(self, is_below: bool = False) -> list[Callable[[], str]]:
        """`is_below` a savepoint: a root that is truncated there is marked (`capture.definitions.truncates`)."""
        weighted = [
            (self._insert, 8),
            (self._update, 8),
            (self._move, 6),
            (self._delete, 4),
            (self._bag, 6),
            (self._log, 2),
            (self._moment, 3),
            (partial(self._truncate, () if is_below else ("parts",)), 1),
        ]
        return [change for change, weight in weighted for _ in range(weight)]

    # --- one change each -----------------------------------------------------------------------------------------

    def _key(self) -> int:
        return self.random.randint(1, 8)

    def _text(self) -> str:
        return self.random.choice(["NULL", "''", "'a'", "'ä''\\'", "'long word'"])

    def _large(self) -> str:
        """Out of line, inline or NULL: whether a later update leaves it out of the stream depends on that."""
        letter = self.random.choice("abcdef")
        return self.random.choice([f"repeat('{letter}', 3000)", f"repeat('{letter}', 9000)", f"'{letter}'", "NULL"])

    def _number(self) -> str:
        return self.random.choice(["NULL", "0", "1.50", "-99999.99", "'NaN'"])

    def _insert(self) -> str:
        key, text, large = self._key(), self._text(), self._large()
        return self.random.choice(
            [
                f"INSERT INTO plain VALUES ({key}, {text}, {self._number()}, {large}, {self._large()}) {_UNLESS_TAKEN}",
                f"INSERT INTO whole VALUES ({key}, {text}, {self._number()}, {large}, {self._large()}) {_UNLESS_TAKEN}",
                f"INSERT INTO plain VALUES ({key}, {text}) ON CONFLICT (id) DO UPDATE SET a = excluded.a",
                f"INSERT INTO pair VALUES ({key % 3}, '{key}', 'NaN', {large}) {_UNLESS_TAKEN}",
                f"INSERT INTO named VALUES ({key}, 'k{self._key()}', {key}, {large}) {_UNLESS_TAKEN}",
                f"INSERT INTO parts VALUES ({key}, {text}, {large}) {_UNLESS_TAKEN}",
            ]
        )

    def _update(self) -> str:
        key, text, large = self._key(), self._text(), self._large()
        return self.random.choice(
            [
                f"UPDATE plain SET a = {text} WHERE id = {key}",
                f"UPDATE plain SET n = {self._number()} WHERE id % 3 = {key % 3}",
                f"UPDATE plain SET body = {large} WHERE id = {key}",
                f"UPDATE plain SET more = {large}, a = {text} WHERE id = {key}",
                f"UPDATE whole SET a = {text}",
                f"UPDATE whole SET body = {large} WHERE id = {key}",
                f"UPDATE pair SET v = {key} WHERE x = {key % 3}",
                f"UPDATE named SET n = {key}",
                f"UPDATE parts SET a = {text}",
            ]
        )

    def _move(self) -> str:
        old, new = self._key(), self._key()
        return self.random.choice(
            [
                f"UPDATE plain SET id = {new} WHERE id = {old}",
                f"UPDATE plain SET id = {new}, a = 'moved' WHERE id = {old}",
                f"UPDATE plain SET id = {new}, body = {self._large()} WHERE id = {old}",
                "UPDATE plain SET id = id + 100 WHERE id < 100",
                f"UPDATE plain SET id = id - 100 WHERE id > 100 AND id % 2 = {new % 2}",
                f"UPDATE whole SET id = {new} WHERE id = {old}",
                f"UPDATE pair SET x = {new % 3} WHERE x = {old % 3} AND y = '{new}'",
                f"UPDATE pair SET y = '{new}' WHERE y = '{old}'",
                f"UPDATE named SET a = 'k{new}' WHERE a = 'k{old}'",
                f"UPDATE named SET id = {new} WHERE id = {old}",
                f"UPDATE parts SET id = {new} WHERE id = {old}",
            ]
        )

    def _delete(self) -> str:
        key = self._key()
        return self.random.choice(
            [
                f"DELETE FROM plain WHERE id = {key}",
                f"DELETE FROM plain WHERE id % 4 = {key % 4}",
                f"DELETE FROM whole WHERE id = {key}",
                f"DELETE FROM pair WHERE y = '{key}'",
                f"DELETE FROM named WHERE id = {key}",
                f"DELETE FROM parts WHERE id = {key}",
            ]
        )

    def _bag(self) -> str:
        text, value = self._text(), self.random.choice(["NULL", "0", "1", "'NaN'", "'-0'"])
        one = f"(SELECT min(ctid) FROM bag WHERE a IS NOT DISTINCT FROM {text})"
        return self.random.choice(
            [
                f"INSERT INTO bag SELECT {text}, {value}, {self._large()} FROM generate_series(1, 3)",
                f"UPDATE bag SET v = {value} WHERE ctid = {one}",
                f"UPDATE bag SET v = {value} WHERE a IS NOT DISTINCT FROM {text}",
                f"DELETE FROM bag WHERE ctid = {one}",
                f"DELETE FROM bag WHERE a IS NOT DISTINCT FROM {text}",
            ]
        )

    def _log(self) -> str:
        return f"INSERT INTO log VALUES ({self._key()}, {self._text()}), ({self._key()}, {self._text()})"

    def _moment(self) -> str:
        at, day = (
            f"'2024-01-01 00:00:00+00'::timestamptz + '{self._key()} us'",
            f"'2024-01-0{self.random.randint(1, 3)}'",
        )
        return self.random.choice(
            [
                f"INSERT INTO moment VALUES ({at}, {day}, '{{\"k\": null}}', '{{1,NULL}}', '\\x00ff') {_UNLESS_TAKEN}",
                f"UPDATE moment SET at = at + '10 us' WHERE day = {day}",
                f"UPDATE moment SET l = l || 1, j = NULL WHERE day = {day}",
                f"DELETE FROM moment WHERE at = {at}",
            ]
        )

    def _truncate(self, roots: tuple[str, ...]) -> str:
        names = self.random.sample(
            ["plain", "pair", "whole", "bag", "named", "log", *roots, "moment"], self.random.randint(1, 3)
        )
        return f"TRUNCATE {', '.join(names)}"
