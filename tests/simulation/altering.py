"""Tables whose definition changes at any moment, in the middle of transactions too, and changes of their rows.

Only what docs/schema-changes.md calls followed or marked is altered; a column that was dropped never gives its name to
another one. Several alterations between two looks may park a table with a key, whose remedy is to unpark and backfill
it; without a key it would be to begin anew, so that table is altered only where the last look knows it, and where the
source fails over its columns keep their names: a look that may be one at what was lost explains no name that vanished.
What columns there are, the source is asked in the session that changes them: a ROLLBACK takes an ALTER back, too."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from tests.support import judge
from tests.support.capture import Environment
from tidemark.config import TableRule

SCHEMA = "altered"
ITEM, HEAP = f"{SCHEMA}.item", f"{SCHEMA}.heap"  # with a key; without one, under FULL
RULES = (TableRule(ITEM), TableRule(HEAP))
MOST_COLUMNS = 8

_CREATE = (
    f"CREATE SCHEMA {SCHEMA}",
    f"CREATE TABLE {ITEM} (id int PRIMARY KEY, name varchar(20), size int, price numeric(8,2), body text)",
    f"ALTER TABLE {ITEM} ALTER body SET STORAGE EXTERNAL",
    f"CREATE TABLE {HEAP} (name varchar(20), size int, body text)",
    f"ALTER TABLE {HEAP} REPLICA IDENTITY FULL",
    f"INSERT INTO {ITEM} SELECT i, 'old', i, i, repeat('o', 3000) FROM generate_series(1, 12) i",
    f"INSERT INTO {HEAP} SELECT 'old', i % 3, 'o' FROM generate_series(1, 6) i",
)

# Beside the type: what a row may get of it.
_VALUES = {
    "integer": ("NULL", "0", "7", "-1"),
    "bigint": ("NULL", "0", "7", "9999999999"),
    "numeric": ("NULL", "0", "1.50", "-9999.25"),
    "character varying": ("NULL", "''", "'a'", "'long word'"),
    "text": ("NULL", "''", "'a'", "repeat('e', 3000)", "repeat('f', 9000)"),
    "timestamp with time zone": ("NULL", "'2024-01-01 00:00:00+00'"),
}
_ADDED = (
    "text",
    "int",
    "int DEFAULT 7",
    "text DEFAULT 'open'",
    "numeric(8,2) DEFAULT 1.50",
    "varchar(10) DEFAULT 'a' NOT NULL",
    "timestamptz DEFAULT clock_timestamp()",
)
_WIDER = {
    "integer": "bigint",
    "character varying(10)": "varchar(20)",
    "character varying(20)": "text",
    "numeric(8,2)": "numeric(12,2)",
}


def create(place: Environment) -> None:
    place.execute(*_CREATE)


@dataclass(slots=True)
class Altered:
    """Statements for a session of `place`; `altered` are those that were said, of which some were rolled back. With
    `only_told` no name vanishes that the last look does not know, of the table with a key either; `fails_over`: none
    does of the one without."""

    place: Environment
    random: Random
    only_told: bool = False
    fails_over: bool = False
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    altered: list[str] = field(default_factory=list)

    def change(self, session: str) -> str:
        """A change of some rows."""
        table = self.random.choice([ITEM, ITEM, HEAP])
        columns = self._columns(session, table)
        key = self._key(columns) if table == ITEM else None
        return self.random.choice([self._insert, self._update, self._update, self._delete])(table, columns, key)

    def alteration(self, session: str) -> str:
        table = self.random.choice([ITEM, ITEM, HEAP])
        columns = self._columns(session, table)
        key = self._key(columns) if table == ITEM else None
        others = [name for name in columns if name != key]
        ways: list[Callable[[], str]] = []
        if len(columns) < MOST_COLUMNS:
            ways += [lambda: f"ADD {self._new_name()} {self.random.choice(_ADDED)}"] * 2
        keeps_names = key is None and self.fails_over
        may_vanish = not keeps_names and ((key is not None and not self.only_told) or self._is_told(table, columns))
        if may_vanish:
            ways += [lambda: f"RENAME {self.random.choice(list(columns))} TO {self._new_name()}"]
        if len(others) > 1 and may_vanish:
            ways += [lambda: f"DROP {self.random.choice(others)}"]
        wider = [name for name, of in columns.items() if of in _WIDER]
        if wider:
            ways += [lambda: self._widened(self.random.choice(wider), columns)]
        if not ways:
            return "SELECT 1"
        statement = f"ALTER TABLE {table} {self.random.choice(ways)()}"
        self.altered.append(statement)
        return statement

    def takes_locks(self, session: str) -> bool:
        """Whether the session's open transaction altered a table."""
        query = "SELECT 1 FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'AccessExclusiveLock' LIMIT 1"
        return self.place.session(session).execute(query).fetchone() is not None

    def touch(self) -> None:
        """A change of each table, so that the stream has its newest definition."""
        key = self._key(self._columns("main", ITEM))
        self.place.execute(f"INSERT INTO {ITEM} ({key}) SELECT coalesce(max({key}), 0) + 1000 FROM {ITEM}")
        self.place.execute(f"INSERT INTO {HEAP} DEFAULT VALUES")

    # --- how ------------------------------------------------------------------------------------------------------

    def _new_name(self) -> str:
        return f"c{next(self.numbers)}"

    def _columns(self, session: str, table: str) -> dict[str, str]:
        """Name -> type, as the session sees them now, in order."""
        rows = self.place.session(session).execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (table,),
        )
        return dict(rows.fetchall())

    def _is_told(self, table: str, columns: dict[str, str]) -> bool:
        """Whether both the stream and the last look brought these columns."""
        streamed = judge.schema_of(self.place, table)
        row = self.place.table_rows().get(table)
        looked_at = None if row is None or row.fingerprint is None else row.fingerprint["columns"]
        return (
            streamed is not None
            and looked_at is not None
            and [c.name for c in streamed.columns] == [c["name"] for c in looked_at] == list(columns)
        )

    def _key(self, columns: dict[str, str]) -> str:
        """It is never dropped, so it stays the first."""
        return next(iter(columns))

    def _widened(self, name: str, columns: dict[str, str]) -> str:
        return f"ALTER {name} TYPE {_WIDER[columns[name]]}"

    def _value(self, of: str) -> str:
        return self.random.choice(_VALUES[of.partition("(")[0]])

    def _insert(self, table: str, columns: dict[str, str], key: str | None) -> str:
        names = [name for name in columns if name == key or self.random.random() < 0.7] or list(columns)
        values = [str(self.random.randint(1, 20)) if name == key else self._value(columns[name]) for name in names]
        return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(values)}) ON CONFLICT DO NOTHING"

    def _update(self, table: str, columns: dict[str, str], key: str | None) -> str:
        name = self.random.choice(list(columns))
        if name == key:
            old, new = self.random.randint(1, 20), self.random.randint(1, 20)
            return f"UPDATE {table} SET {key} = {new} WHERE {key} = {old}"
        value = self._value(columns[name])
        return f"UPDATE {table} SET {name} = {value} WHERE {self._some(table, columns, key)}"

    def _delete(self, table: str, columns: dict[str, str], key: str | None) -> str:
        return f"DELETE FROM {table} WHERE {self._some(table, columns, key)}"

    def _some(self, table: str, columns: dict[str, str], key: str | None) -> str:
        if key is not None:
            return f"{key} % 4 = {self.random.randrange(4)}"
        name = self.random.choice(list(columns))
        return f"ctid = (SELECT min(ctid) FROM {table} WHERE {name} IS NOT DISTINCT FROM {self._value(columns[name])})"
