"""Streams a replication slot: raw XLogData messages in stream order, over psycopg's libpq layer.

Grammar of the messages inside CopyData after START_REPLICATION (PostgreSQL documentation, 54.4 "Streaming Replication
Protocol"); all integers are big-endian:

    server  XLogData   'w' int64 start LSN, int64 end LSN, int64 clock, message     (header: 25 bytes)
            Keepalive  'k' int64 end LSN, int64 clock, int8 reply requested
    client  Status     'r' int64 written, int64 flushed, int64 applied, int64 clock, int8 reply requested

Only the ledger decides what is confirmed (R3): every status reply carries the position that was confirmed when the
stream was opened, or what `confirm` was given since: a slot in use is moved by its own client alone.

The walsender sends every message by itself, and a client that wakes for each of them halves its speed. While messages
flow, SO_RCVLOWAT lets the kernel wake the reader only for a large piece; after a moment without messages the limit is 1
again, so that the end of the stream is not delayed. A thread answers the server while the caller decodes or writes: the
server ends a connection that has been silent for `wal_sender_timeout`.
"""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import psycopg
from psycopg import pq

from tidemark.errors import PublicationWasMissing, ReplicationFailed, TidemarkError
from tidemark.lsn import Lsn
from tidemark.postgres import postgres_session
from tidemark.postgres.postgres_session import connect_walsender
from tidemark.postgres.redaction import SAFE_FROM_A_WALSENDER, from_result, without_values
from tidemark.source.wal.wal_messages import LOGICAL_MESSAGE, is_foreign

XLOG_HEADER_BYTES: Final = 25

_XLOG_DATA: Final = ord("w")
_KEEPALIVE: Final = ord("k")
_KEEPALIVE_BODY: Final = struct.Struct(">cQqB")
_STATUS: Final = struct.Struct(">cQQQqB")
_XLOG_STARTS: Final = struct.Struct(">cQQ")

_POSTGRES_EPOCH_S: Final = 946_684_800

LOW_WATER_BYTES: Final = 512 * 1024
# How much is received before it is taken apart.
_RECEIVE_BYTES: Final = 1024 * 1024
# How long a flowing stream may pause before what lies in the kernel is fetched, however little it is.
_PAUSE_S: Final = 0.02
# A role or database may bound its transactions (since PostgreSQL 17); the stream counts as one, however long it takes.
_NO_TIMEOUTS: Final = b"SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'"

# The server asks for a sign of life after half of wal_sender_timeout (default 60 s) and ends
# the connection after all of it.
REPLY_S: Final = 10.0


# How long a walsender may be at work without a message, a process that hangs included.
LONGEST_WORK_S: Final = 12 * 3600.0


class SlotInUse(Exception):
    """START_REPLICATION found the slot active. Internal: the drain waits for the slot, or reports its user."""


class ReplicationStream:
    """One START_REPLICATION from `start` on, as a context manager. Only one thread may call `read`."""

    def __init__(
        self,
        conninfo: str,
        *,
        application_name: str,
        slot: str,
        publication: str,
        start: Lsn,
        confirmed: Lsn | None,
        reply_s: float = REPLY_S,
        low_water_bytes: int = LOW_WATER_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`confirmed` is the position in status replies; None confirms nothing, which the server accepts. Raises
        SlotInUse, DatabaseUnreachable, DatabaseRefused or ReplicationFailed."""
        self._clock = clock
        self._slot = slot
        self._publication = publication
        self._confirmed = int(confirmed or 0)
        self._low_water_bytes = low_water_bytes
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._low_water = 1
        self._flowed = 0  # bytes received since the stream last paused
        self._near_end = False
        self.sent_lsn = Lsn(0)
        self.replies = 0
        self._skipped = 0
        self.progress_at = clock()
        self._connection = connect_walsender(conninfo, application_name=application_name)
        self._pgconn = self._connection.pgconn
        self.pid = self._pgconn.backend_pid
        try:
            self._connection.execute(_NO_TIMEOUTS)
            if self._connection.info.parameter_status("server_encoding") == "SQL_ASCII":
                # It stores any bytes, and as UTF-8 it would refuse to send those that are none; the codec keeps them.
                self._connection.execute("SET client_encoding = 'SQL_ASCII'")
            self._start(slot, publication, start)
        except BaseException:
            self._connection.close()
            raise
        self._socket = socket.socket(fileno=socket.dup(self._pgconn.socket))
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)
        self._set_low_water(low_water_bytes)
        self._replier = threading.Thread(
            target=self._keep_replying, args=(reply_s,), name=f"tidemark replies to {slot}", daemon=True
        )
        self._replier.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def read(self, max_bytes: int, wait_s: float) -> list[bytes]:
        """Raw XLogData messages, header included, until `max_bytes` are reached, the stream pauses, or `wait_s` is
        over.

        Empty if nothing arrived, or only logical messages that cannot be Tidemark's (`take_skipped`). A single message
        may be larger than `max_bytes`. Raises ReplicationFailed or PublicationWasMissing.
        """
        payloads: list[bytes] = []
        size = 0
        deadline = self._clock() + wait_s
        try:
            while True:
                with self._lock:
                    size += self._take(payloads, max_bytes - size)
                if size >= max_bytes:
                    break
                remaining = deadline - self._clock()
                if remaining <= 0:
                    break
                pause = _PAUSE_S if payloads or self._low_water > 1 else remaining
                if not self._readable(min(pause, remaining)):
                    self._flowed = 0
                    self._set_low_water(1)
                    if not self._readable(0):
                        if payloads:
                            break
                        continue
                with self._lock:
                    self._receive()
        except psycopg.Error as failed:
            raise postgres_session.full(failed) or ReplicationFailed(
                detail=" ".join(str(without_values(failed)).split())
            ) from None
        if payloads:
            self.progress_at = self._clock()
            self.note_progress(_XLOG_STARTS.unpack_from(payloads[-1])[1])
        return payloads

    def take_skipped(self) -> int:
        """The number of foreign logical messages that were skipped since the last call."""
        skipped, self._skipped = self._skipped, 0
        return skipped

    def silent_s(self) -> float:
        """Seconds since the last message, the last keepalive with progress, or the last sign that the server works."""
        return self._clock() - self.progress_at

    def expect_end(self) -> None:
        """Only the end of the stream is missing: return every byte at once from here on."""
        self._near_end = True
        self._set_low_water(1)

    def expect_more(self) -> None:
        """More data follows: return large pieces again."""
        self._near_end = False

    def confirm(self, lsn: Lsn) -> None:
        """Confirm at once, and in every later reply, that everything below the position is no longer needed. The
        position never decreases."""
        with self._lock:
            if lsn > self._confirmed:
                self._confirmed = int(lsn)
                self._reply()

    def close(self) -> None:
        """End the connection; the server frees the slot as soon as it notices."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._replier.join()
        self._socket.close()
        self._connection.close()

    # --- the protocol -------------------------------------------------------------------------------------------------

    def _start(self, slot: str, publication: str, start: Lsn) -> None:
        quoted = '"' + slot.replace('"', '""') + '"'
        names = '"' + publication.replace('"', '""') + '"'
        names = names.replace("'", "''")
        command = (
            f"START_REPLICATION SLOT {quoted} LOGICAL {start} (proto_version '1', publication_names '{names}', "
            "messages 'true')"
        )
        result = self._pgconn.exec_(command.encode())
        if result.status == pq.ExecStatus.COPY_BOTH:
            return
        refused = from_result(result, SAFE_FROM_A_WALSENDER)
        if isinstance(refused, psycopg.errors.ObjectInUse):
            raise SlotInUse(str(refused))
        raise postgres_session.full(refused) or ReplicationFailed(detail=str(refused))

    def _receive(self) -> None:
        """Move all bytes from the kernel to libpq's buffer. Bytes that stay count for the low-water mark, so the
        next few bytes would wake the reader again."""
        received = pending = _pending_bytes(self._pgconn.socket)
        self._pgconn.consume_input()
        while pending and received < _RECEIVE_BYTES:
            # Not again where nothing is left: behind the server's last words comes the end of the connection.
            pending = _pending_bytes(self._pgconn.socket)
            if pending:
                self._pgconn.consume_input()
                received += pending
        self._flowed += received
        if self._flowed >= self._low_water_bytes and not self._near_end:
            self._set_low_water(self._low_water_bytes)

    def _take(self, payloads: list[bytes], size_wanted: int) -> int:
        """Move libpq's buffered messages to `payloads`, at most about `size_wanted` bytes, and answer keepalives on
        the way.

        Messages are copied: the garbage collector would traverse many live memoryviews again and again, which costs
        more than the copies. Foreign logical messages are not copied, because any login may write one of any size.
        """
        get = self._pgconn.get_copy_data
        append = payloads.append
        size = 0
        while size < size_wanted:
            length, data = get(1)
            if length > 0:
                kind = data[0]
                if kind == _XLOG_DATA:
                    size += length
                    if (
                        length > XLOG_HEADER_BYTES
                        and data[XLOG_HEADER_BYTES] == LOGICAL_MESSAGE
                        and is_foreign(data, XLOG_HEADER_BYTES)
                    ):
                        self._skip(data)
                    else:
                        append(bytes(data))
                elif kind == _KEEPALIVE:
                    self._keepalive(bytes(data))
                else:
                    raise ReplicationFailed(detail=f"a message of unknown kind 0x{kind:02X} in the replication stream")
            elif length == 0:
                break
            else:
                raise self._end_of_copy()
        return size

    def _skip(self, data: memoryview) -> None:
        self._skipped += 1
        self.progress_at = self._clock()
        self.note_progress(_XLOG_STARTS.unpack_from(data)[1])

    def _end_of_copy(self) -> TidemarkError:
        """The reason why the server left copy mode: its own error, or a shutdown."""
        result = self._pgconn.get_result()
        if result is None or result.error_field(pq.DiagnosticField.SQLSTATE) is None:
            return ReplicationFailed(detail="the server ended the stream")
        ended = from_result(result, SAFE_FROM_A_WALSENDER)
        if isinstance(ended, psycopg.errors.UndefinedObject) and self._publication in str(ended):
            return PublicationWasMissing(publication=self._publication, slot=self._slot)
        return postgres_session.full(ended) or ReplicationFailed(detail=str(ended))

    def _keepalive(self, data: bytes) -> None:
        if len(data) != _KEEPALIVE_BODY.size:
            raise ReplicationFailed(detail=f"a keepalive of {len(data)} bytes")
        _, end_lsn, _, reply_requested = _KEEPALIVE_BODY.unpack(data)
        self.note_progress(end_lsn)
        if reply_requested:
            self._reply()

    def note_work(self) -> None:
        """Record that the server works without a message and without progress in the WAL (`is_at_work`)."""
        self.progress_at = self._clock()

    def note_progress(self, lsn: int) -> bool:
        """Record the server's position. Returns whether it is higher than before."""
        if lsn <= self.sent_lsn:
            return False
        self.sent_lsn = Lsn(lsn)
        self.progress_at = self._clock()
        return True

    def _reply(self) -> None:
        """Send a status reply that the client lives; the caller holds the lock."""
        clock_us = int((time.time() - _POSTGRES_EPOCH_S) * 1_000_000)
        self._pgconn.put_copy_data(_STATUS.pack(b"r", self._confirmed, self._confirmed, self._confirmed, clock_us, 0))
        self._pgconn.flush()
        self.replies += 1

    def _keep_replying(self, reply_s: float) -> None:
        while not self._ended.wait(reply_s):
            # A connection that broke shows itself to the reader, with the server's own words.
            with suppress(psycopg.Error), self._lock:
                self._reply()

    # --- the socket ---------------------------------------------------------------------------------------------------

    def _readable(self, timeout_s: float) -> bool:
        return bool(self._poll.poll(max(0, round(timeout_s * 1000))))

    def _set_low_water(self, size: int) -> None:
        if size != self._low_water:
            with suppress(OSError):  # a kernel without it only loses speed
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            self._low_water = size


def _pending_bytes(descriptor: int) -> int:
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


def sent_by(conn: psycopg.Connection[Any], pid: int) -> Lsn | None:
    """The walsender's position in the WAL, sent or not; None if its view does not show it."""
    row = conn.execute("SELECT sent_lsn::text FROM pg_stat_replication WHERE pid = %s", (pid,)).fetchone()
    return None if row is None or row[0] is None else Lsn.parse(row[0])


def is_at_work(conn: psycopg.Connection[Any], pid: int) -> bool:
    """Whether the walsender computes or reads files instead of waiting.

    It assembles a transaction when it has read the commit. If the publication has nothing of the transaction, it sends
    nothing and its position does not move meanwhile. Source: PostgreSQL documentation, table 27.4 "Wait Event Types".
    """
    row = conn.execute(
        "SELECT wait_event_type IS NULL OR wait_event_type IN ('IO', 'LWLock') FROM pg_stat_activity WHERE pid = %s",
        (pid,),
    ).fetchone()
    return row is not None and bool(row[0])


def why_silent(conn: psycopg.Connection[Any], pid: int, sent: Lsn) -> str:
    """The reason why the walsender `pid` sends nothing, as far as the source's views show it; for DrainStalled."""
    sender = conn.execute(
        "SELECT coalesce(wait_event_type || '/' || wait_event, 'running') FROM pg_stat_activity WHERE pid = %s", (pid,)
    ).fetchone()
    if sender is None:
        return f"the walsender (pid {pid}) is gone"
    transaction = conn.execute(
        """
        SELECT 'pid ' || pid, extract(epoch FROM clock_timestamp() - xact_start)::bigint FROM pg_stat_activity
        WHERE xact_start IS NOT NULL AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()
        UNION ALL
        SELECT 'prepared transaction ' || transaction, extract(epoch FROM clock_timestamp() - prepared)::bigint
        FROM pg_prepared_xacts
        ORDER BY 2 DESC LIMIT 1
        """
    ).fetchone()
    about = f"the walsender (pid {pid}) has sent up to {sent} and is {sender[0]}"
    if transaction is not None:
        about += f"; the longest open transaction is that of {transaction[0]}, {transaction[1]} s old"
    return about
