"""A hot standby of an embedded server, to which a failover slot can be carried over; `promote` makes it a primary, and
`rejoined` the old primary its standby."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

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
        """Whether the failover slot was carried over for good. Whoever carries it sleeps up to 30 s between two tries,
        of which several may be needed, unless it is woken."""
        with psycopg.connect(self.conninfo(), autocommit=True) as connection:
            connection.execute("SELECT pg_reload_conf()")
            row = connection.execute(
                "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND synced AND NOT temporary", (slot,)
            ).fetchone()
        return row is not None

    def rewind(self) -> None:
        source = self.primary.conninfo_for_programs(self.database)
        self._run("pg_rewind", "--target-pgdata", str(self.data), "--source-server", source)

    def follow(self) -> None:
        """Begin as a standby at the next start; what ALTER SYSTEM said, here or at the source of a rewind, is gone."""
        for name in ("standby.signal", "postgresql.auto.conf"):
            self._write_secret(self.data / name, "")

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
    # Its roles are the primary's.
    options: dict[str, Any] = {"password": primary.password}
    options["settings"] = {**_following(primary, database, name, slots=slots), **settings}
    standby = Standby(folder, version=primary.version, primary=primary, database=database, name=name, **options)
    try:
        standby.start()
        yield standby
    finally:
        standby.remove()


def rejoined(
    old: PostgresServer, primary: PostgresServer, database: str, *, name: str, rewinds: bool = False
) -> Standby:
    """The server that was the primary, and is stopped, as a standby of the one that took over: in its own folder, so
    with the slots that it had. `rewinds`: what it alone has is taken out of it by pg_rewind first. Whoever made it
    removes it."""
    with psycopg.connect(primary.conninfo(), autocommit=True) as connection:
        connection.execute("SELECT pg_create_physical_replication_slot(%s, true)", (name,))
        connection.execute("CHECKPOINT")  # pg_rewind asks the control file which timeline it is
    options: dict[str, Any] = {"password": old.password, "port": old.port}
    options["settings"] = {**old.settings, **_following(primary, database, name, slots=True)}
    standby = Standby(old.folder, version=old.version, primary=primary, database=database, name=name, **options)
    if rewinds:
        standby.rewind()
    standby.follow()
    standby.start()
    return standby


def _following(primary: PostgresServer, database: str, name: str, *, slots: bool) -> dict[str, str]:
    return {
        "fsync": "off",
        "hot_standby_feedback": "on",
        "primary_conninfo": primary.conninfo(database),
        "primary_slot_name": name,
        "sync_replication_slots": "on" if slots else "off",
    }
