"""Checks the standby that the slot is on, or shall be created on -> findings about version, feedback and free slots.

Without `hot_standby_feedback` a vacuum on the primary removes rows of the catalogue that the slot still needs, and the
standby then invalidates it: a gap, and every table is read again. Feedback is forgotten while the standby is away,
unless it has a slot of its own at the primary. Source: PostgreSQL documentation, 47.2.3 "Replication Slots".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import psycopg

from tidemark.errors import Move
from tidemark.findings import Finding
from tidemark.postgres.postgres_session import one_row

OLDEST_STANDBY: Final = 16


def standby_findings(standby: psycopg.Connection[Any], connection_id: str, slot: str) -> Iterator[Finding]:
    major, in_recovery, feeds_back, has_own_slot, others, room = one_row(
        standby,
        """
        SELECT current_setting('server_version_num')::int / 10000, pg_is_in_recovery(),
               current_setting('hot_standby_feedback')::bool, current_setting('primary_slot_name') <> '',
               (SELECT count(*) FROM pg_replication_slots WHERE slot_name <> %s),
               current_setting('max_replication_slots')::int
        """,
        (slot,),
    )
    if not in_recovery:
        return  # it was promoted: it is the primary now, and has the slot
    if major < OLDEST_STANDBY:
        yield Finding.error(
            "standby",
            f"The standby is PostgreSQL {major}; standbys decode from {OLDEST_STANDBY} on",
            f"Upgrade it, or let connection {connection_id} name the primary alone, without target_session_attrs",
            Move.FIX_CONFIG,
        )
    if not feeds_back:
        yield Finding.error(
            "standby",
            "hot_standby_feedback is off on the standby: a vacuum on the primary would invalidate the slot there",
            "On the standby: ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf()",
            Move.FIX_SOURCE,
        )
    if not has_own_slot:
        yield Finding.warning(
            "standby",
            "The standby has no slot at the primary (primary_slot_name): while it is away, a vacuum there or removed "
            "WAL may invalidate the slot on the standby",
            "At the primary: SELECT pg_create_physical_replication_slot('<name>'); then name it in the standby's "
            "primary_slot_name",
            Move.FIX_SOURCE,
        )
    if others >= room:
        yield Finding.error(
            "standby",
            f"All {room} replication slots of the standby are in use",
            "Raise max_replication_slots on the standby and restart it, or drop a slot that is not needed any more "
            "(SELECT * FROM pg_replication_slots)",
            Move.FIX_SOURCE,
        )
