"""A hot standby of an embedded server, to which a failover slot can be carried over; `promote` makes it a primary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import psycopg

from sandbox.services.postgres import PostgresServer, wait_for


@dataclass
class Standby(PostgresServer):
    """Made from a base backup of `primary`, and connected to its `database`, as carrying slots over needs it."""

    primary: PostgresServer = field(kw_only=True)
    database: str = field(kw_only=True)
    name: str = field(default="standby", kw_only=True)

    def promote(self) -> None:
        self._run("pg_ctl", "-D", str(self.data), "-w", "promote")

    def is_primary(self) -> bool:
        with psycopg.connect(self.conninfo(), autocommit=True) as connection:
            row = connection.execute("SELECT NOT pg_is_in_recovery()").fetchone()
        return bool(row and row[0])

    def replayed(self, lsn: str) -> bool:
        with psycopg.connect(self.conninfo(), autocommit=True) as connection:
            row = connection.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (lsn,)).fetchone()
        return bool(row and row[0])

    def fall_behind(self) -> None:
        """Receive nothing from the primary any more: what it writes from now on is lost with it."""
        with psycopg.connect(self.conninfo(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
            connection.execute("SELECT pg_reload_conf()")
            wait_for(
                "nothing is received any more",
                lambda: connection.execute("SELECT 1 FROM pg_stat_wal_receiver").fetchone() is None,
            )

    def has_slot(self, slot: str) -> bool:
        """Whether the failover slot was carried over for good."""
        with psycopg.connect(self.conninfo(), autocommit=True) as connection:
            row = connection.execute(
                "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND synced AND NOT temporary", (slot,)
            ).fetchone()
        return row is not None

    def _create(self) -> None:
        source = self.primary.conninfo_for_programs(self.database)
        self._run("pg_basebackup", "-d", source, "-D", str(self.data), "-R", "-C", "-S", self.name, "-c", "fast")


@contextmanager
def standby_of(
    primary: PostgresServer,
    folder: Path,
    database: str,
    *,
    slots: bool = True,
    name: str = "standby",
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Standby]:
    """`slots`: failover slots are carried over. `name` is that of its own slot."""
    settings = {
        "fsync": "off",
        "hot_standby_feedback": "on",
        "primary_conninfo": primary.conninfo(database),
        "primary_slot_name": name,
        "sync_replication_slots": "on" if slots else "off",
        **settings,
    }
    # Its roles are the primary's.
    options = {"settings": settings, "password": primary.password, "contrib": primary.contrib}
    standby = Standby(folder, version=primary.version, primary=primary, database=database, name=name, **options)
    try:
        standby.start()
        yield standby
    finally:
        standby.remove()
