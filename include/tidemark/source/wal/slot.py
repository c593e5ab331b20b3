"""Reads the pipeline's replication slot and its server with one query -> `SlotState`, judged by `usable`.

`confirmed_lsn` is confirmed_flush_lsn: transactions whose commit lies below it are never sent again. It is kept on
disk at checkpoints only, so after a crash it can stand lower than it was read before; that is normal, it loses
nothing. Server facts come from functions that every role may call. The timeline is the one that WAL is written to now
(`pg_walfile_name`): the control file still shows the old one for a moment after a promotion. Source: PostgreSQL
documentation, 53.20 "pg_replication_slots", 9.28.3 "Recovery Control Functions".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from tidemark.errors import (
    SlotDatabaseDiffers,
    SlotInvalidated,
    SlotMissing,
    SlotNotReady,
    SlotOfAnother,
    SlotPluginDiffers,
    SlotSynced,
    SlotTwoPhase,
    SourceInRecovery,
)
from tidemark.lsn import Lsn
from tidemark.postgres.postgres_session import Session, one_row
from tidemark.source.wal.slot_server import at_slot

PLUGIN = "pgoutput"


@dataclass(frozen=True, slots=True)
class Server:
    """`flush_lsn`: WAL that is durable at the source. `version` is server_version_num. `started_at` is when it was
    started, in the server's own words; one that recovered by itself from a crash of a backend was not."""

    system_identifier: str
    timeline: int
    version: int
    database: str
    flush_lsn: Lsn
    started_at: str


@dataclass(frozen=True, slots=True)
class SlotState:
    """One row of pg_replication_slots, with the columns that only newer versions have at their harmless value. Of
    `catalog_xmin` the catalogue shows the low 32 bits."""

    name: str
    plugin: str | None
    slot_type: str
    database: str | None
    temporary: bool
    active_pid: int | None
    restart_lsn: Lsn | None
    confirmed_lsn: Lsn | None
    wal_status: str | None
    safe_wal_size: int | None
    two_phase: bool
    failover: bool
    synced: bool
    invalidation_reason: str | None
    retained_bytes: int
    catalog_xmin: int | None = None

    @property
    def limit_bytes(self) -> int | None:
        """Retained WAL at which the slot is lost (max_slot_wal_keep_size); None if there is no such limit."""
        return None if self.safe_wal_size is None else self.retained_bytes + max(self.safe_wal_size, 0)


def read_server(connection: psycopg.Connection[Any]) -> Server:
    """What identifies the server. Raises `SourceInRecovery` on a standby."""
    if one_row(connection, "SELECT pg_is_in_recovery()")[0]:
        raise SourceInRecovery()
    system_identifier, timeline, version, database, flush_lsn, started_at = one_row(
        connection,
        """
        SELECT (SELECT system_identifier::text FROM pg_control_system()),
               ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int,
               current_setting('server_version_num')::int,
               current_database()::text,
               pg_current_wal_flush_lsn()::text,
               pg_postmaster_start_time()::text
        """,
    )
    return Server(system_identifier, timeline, version, database, Lsn.parse(flush_lsn), started_at)


def read_slot(connection: psycopg.Connection[Any], name: str) -> SlotState | None:
    """The slot as it stands now; None if there is none of this name. One on a standby stays there, whoever is promoted:
    it counts as a failover slot."""
    stays = isinstance(connection, Session) and bool(connection.servers)
    connection = at_slot(connection, name)
    row = connection.execute(
        """
        SELECT to_jsonb(s),
               coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                                             ELSE pg_current_wal_lsn() END, s.restart_lsn), 0)
          FROM pg_replication_slots s WHERE slot_name = %s
        """,
        (name,),
    ).fetchone()
    if row is None:
        return None
    raw, retained = row
    conflicting = "conflicting with recovery" if raw.get("conflicting") else None
    return SlotState(
        name=name,
        plugin=raw["plugin"],
        slot_type=raw["slot_type"],
        database=raw["database"],
        temporary=raw["temporary"],
        active_pid=raw["active_pid"],
        restart_lsn=None if raw["restart_lsn"] is None else Lsn.parse(raw["restart_lsn"]),
        confirmed_lsn=None if raw["confirmed_flush_lsn"] is None else Lsn.parse(raw["confirmed_flush_lsn"]),
        wal_status=raw["wal_status"],
        safe_wal_size=raw["safe_wal_size"],
        two_phase=raw["two_phase"],
        failover=stays or raw.get("failover", False),
        synced=raw.get("synced", False),
        invalidation_reason=raw.get("invalidation_reason") or conflicting,
        retained_bytes=int(retained),
        catalog_xmin=None if raw.get("catalog_xmin") is None else int(raw["catalog_xmin"]),
    )


def usable(connection: psycopg.Connection[Any], name: str) -> tuple[SlotState, Lsn]:
    """The slot and its confirmed LSN, where a drain may read it; else one error per reason why not."""
    slot = read_slot(connection, name)
    if slot is None:
        raise SlotMissing(slot=name)
    if slot.slot_type != "logical":
        raise SlotOfAnother(slot=name, reason=f"it is a {slot.slot_type} slot")
    if slot.temporary:
        raise SlotOfAnother(slot=name, reason="it is a temporary slot and ends with its session")
    if slot.plugin != PLUGIN:
        raise SlotPluginDiffers(slot=name, plugin=slot.plugin)
    connected, in_recovery = one_row(at_slot(connection, name), "SELECT current_database()::text, pg_is_in_recovery()")
    if slot.database != connected:
        raise SlotDatabaseDiffers(slot=name, database=slot.database, connected=connected)
    if slot.synced and in_recovery:  # on a promoted standby `synced` stays true and means nothing
        raise SlotSynced(slot=name)
    if slot.two_phase:
        raise SlotTwoPhase(slot=name)
    if slot.wal_status == "lost" or slot.invalidation_reason is not None:
        raise SlotInvalidated(
            slot=name,
            wal_status=slot.wal_status,
            reason=slot.invalidation_reason or "the WAL it needs was removed",
            lsn=slot.confirmed_lsn or "an unknown position",
        )
    if slot.confirmed_lsn is None:
        raise SlotNotReady(slot=name, blocked_by=_open_transactions(connection))
    return slot, slot.confirmed_lsn


def _open_transactions(connection: psycopg.Connection[Any]) -> str:
    """The oldest transactions of the server that hold an xid, without their text: it may hold values."""
    rows = connection.execute(
        """
        SELECT who FROM (
            SELECT 'process ' || pid || ' of ' || coalesce(usename, '?') AS who, xact_start AS since
              FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
            UNION ALL
            SELECT 'prepared transaction ' || quote_ident(gid) || ' of ' || owner, prepared
              FROM pg_prepared_xacts) AS open
        ORDER BY since LIMIT 3
        """
    ).fetchall()
    return ", ".join(who for (who,) in rows) or "none is visible to this role"
