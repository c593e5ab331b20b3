"""Checks that the source's WAL still has the last heartbeat at the LSN where the drain read it (R4, R8).

    ── heartbeat H ── staged             the lake
    ── copied ─╳                         a copy of the disk that was made before H, put back, and written on:
             └──────────────── flush     same system, same timeline, and WAL beyond `staged` again

Nothing that identifies a source differs on such a server. What was staged above the copy is not what the server has
there, so a slot at or below `staged` proves nothing. But the slot stands below H, where the copy had it, and would send
H again. The message names an attempt, and no other WAL has it. So H is read from the WAL if both hold:

    the server was started since the last check        a copy is not put back under a server that runs
    the slot stands below H                            else this very WAL moved the slot beyond H

A crash that moved the slot back looks the same, and has H.
"""

from __future__ import annotations

import json
import struct
from functools import partial
from typing import Any, Final

import psycopg

from tidemark.config import PipelineConfig
from tidemark.errors import GenerationStale
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import SLOT, Lease
from tidemark.ledger.staged import batches, generations
from tidemark.ledger.staged.generations import Generation
from tidemark.lsn import Lsn
from tidemark.pgoutput.messages import parse_logical
from tidemark.postgres.postgres_session import to_the_same_server
from tidemark.source.wal.replication import LONGEST_WORK_S, XLOG_HEADER_BYTES, ReplicationStream, is_at_work, sent_by
from tidemark.source.wal.slot_server import at_slot
from tidemark.source.wal.slot_use import take_when_free
from tidemark.source.wal.wal_messages import LOGICAL_MESSAGE

# The stream begins this much below the end of the heartbeat's commit record, which takes some fifty bytes.
_BEFORE_BYTES: Final = 8192
_BLOCK_BYTES: Final = 1024 * 1024
_SLOT_WAIT_S: Final = 20.0

_BEGIN: Final = struct.Struct(">cQ")


def was_rewound(
    config: PipelineConfig, source: psycopg.Connection[Any], ledger: Ledger, lease: Lease, confirmed_lsn: Lsn
) -> bool:
    """Whether the WAL up to `staged` differs from the staged changes, as far as the slot shows it. Needs the lease
    `slot`, and a slot that no other process reads. Raises GenerationStale if the server does not respond."""
    generation = generations.required(ledger)
    heartbeat_lsn = generation.heartbeat_lsn
    if heartbeat_lsn is None or confirmed_lsn >= heartbeat_lsn:
        return False
    batch = batches.ending_at(ledger, generation.number, heartbeat_lsn)
    if batch is None:
        return False  # its batch was retired: applied to all tables long ago, and confirmed

    def start() -> ReplicationStream:
        return ReplicationStream(
            to_the_same_server(at_slot(source, config.slot)),
            application_name=config.application_name,
            slot=config.slot,
            publication=config.publication,
            start=Lsn(max(confirmed_lsn, heartbeat_lsn - _BEFORE_BYTES)),
            confirmed=None,
        )

    stream = take_when_free(
        source,
        config.slot,
        config.application_name,
        start,
        limit_s=_SLOT_WAIT_S,
        check_lease=partial(lease.check, ledger, SLOT),
    )
    with stream:
        return not _has_heartbeat(stream, source, config, generation, heartbeat_lsn, batch.attempt)


def _has_heartbeat(
    stream: ReplicationStream,
    source: psycopg.Connection[Any],
    config: PipelineConfig,
    generation: Generation,
    heartbeat_lsn: Lsn,
    attempt: str,
) -> bool:
    """Read the stream up to the end of the heartbeat's transaction. Only BEGIN and logical messages are evaluated:
    all other messages need no decoding here, whether they were staged or differ.

    The server begins to read at the start of the slot's oldest open transaction, and sends nothing until it arrives
    here. So there is no time limit while it makes progress.
    """
    read_lsn, patience_s = Lsn(0), float(config.bounds.drain_stall_s)
    while True:
        for payload in stream.read(_BLOCK_BYTES, 1.0):
            kind = payload[XLOG_HEADER_BYTES]
            if kind == LOGICAL_MESSAGE and _is_heartbeat(payload[XLOG_HEADER_BYTES:], attempt):
                return True
            if kind == ord("B") and _BEGIN.unpack_from(payload, XLOG_HEADER_BYTES)[1] >= heartbeat_lsn:
                return False
        if stream.sent_lsn >= heartbeat_lsn:
            return False
        if stream.silent_s() > patience_s:
            # The server's own position, not `stream.sent_lsn`: messages up to it may still be on their way.
            there = at_slot(source, config.slot)
            before, read_lsn = read_lsn, sent_by(there, stream.pid) or Lsn(0)
            if read_lsn > before or (stream.silent_s() < LONGEST_WORK_S and is_at_work(there, stream.pid)):
                patience_s = stream.silent_s() + config.bounds.drain_stall_s
                continue
            raise GenerationStale(
                slot=config.slot,
                generation=generation.number,
                difference=f"the source did not say what its WAL has at {heartbeat_lsn}",
            )


def _is_heartbeat(message: bytes, attempt: str) -> bool:
    try:
        raw = json.loads(parse_logical(message, Lsn(0), 0).content)
    except (ValueError, RecursionError):  # any login's words
        return False
    return isinstance(raw, dict) and (raw.get("kind"), raw.get("attempt")) == ("heartbeat", attempt)
