"""Waits for a slot that is in use, ends a dead attempt's backend, or reports the user of the slot.

    take() ──in use by another──► wait, up to `limit_s` ──► take() … SlotBusy
       └─────in use by a backend of our own name──► wait a moment, end it ──► take()

A slot is active for a moment after its client closed. The caller holds the lease `slot`, so a backend that carries the
pipeline's own name belongs to a dead attempt. It is ended only after another check of the lease, since an attempt
without the lease is the dead one itself. A foreign backend is never ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import psycopg

from tidemark.errors import SlotBusy
from tidemark.source.wal.replication import SlotInUse
from tidemark.source.wal.slot_server import at_slot
from tidemark.wait_log import Wait

log = logging.getLogger(__name__)

# How long a backend of our own name may take to end by itself, and how long the server is given to end it.
OWN_BACKEND_WAIT_S: Final = 2.0
TERMINATE_TIMEOUT_MS: Final = 5000

Taken = TypeVar("Taken")


@dataclass(frozen=True, slots=True)
class SlotUser:
    """The backend that reads the slot."""

    pid: int
    application_name: str


def read_user(connection: psycopg.Connection[Any], name: str) -> SlotUser | None:
    """The present reader of the slot; None if there is none. Names that this role may not read are empty."""
    row = (
        at_slot(connection, name)
        .execute(
            "SELECT s.active_pid, coalesce(a.application_name, '') FROM pg_replication_slots s "
            "LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid "
            "WHERE s.slot_name = %s AND s.active_pid IS NOT NULL",
            (name,),
        )
        .fetchone()
    )
    return None if row is None else SlotUser(row[0], row[1])


def in_words(name: str, user: SlotUser | None) -> str:
    """The slot, for a log line about a wait."""
    by = "nobody any more" if user is None else f"process {user.pid} ({user.application_name or 'without a name'})"
    return f'the slot "{name}", which is in use by {by}'


def take_when_free(
    connection: psycopg.Connection[Any],
    slot: str,
    application_name: str,
    take: Callable[[], Taken],
    *,
    limit_s: float,
    check_lease: Callable[[], None],
) -> Taken:
    """The result of `take`, which is repeated while the slot is in use. `connection` is an ordinary session at the
    source.

    Raises SlotBusy with the user's name if the slot is still in use after `limit_s`; what `check_lease` raises if
    another attempt holds the lease by then.
    """
    wait = Wait(limit_s, every_s=0.1)
    ended: set[int] = set()
    while True:
        try:
            result = take()
        except (psycopg.errors.ObjectInUse, SlotInUse) as refused:
            user = read_user(connection, slot)
            is_own = user is not None and user.application_name == application_name[:63] and user.pid not in ended
            if user is not None and is_own and wait.waited_s >= min(OWN_BACKEND_WAIT_S, limit_s / 2):
                check_lease()
                log.warning('Ending process %d of a dead attempt, which holds the slot "%s"', user.pid, slot)
                ends = "SELECT pg_terminate_backend(%s, %s)"
                at_slot(connection, slot).execute(ends, (user.pid, TERMINATE_TIMEOUT_MS))
                ended.add(user.pid)
                continue  # the slot may be free now, however long that took
            if not wait.pause(partial(in_words, slot, user)):
                pid, application = ("unknown", "unknown") if user is None else (user.pid, user.application_name)
                raise SlotBusy(slot=slot, pid=pid, application=application) from refused
        else:
            wait.log_end()
            return result
