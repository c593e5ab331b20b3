"""The first WAL of a cluster -> whether `pg_upgrade` made a slot in it, and nothing was written before the slot.

What a new cluster's WAL shows (PostgreSQL 15 to 18, src/bin/pg_upgrade):

    the first record        has no record before it: pg_resetwal wrote it, once all was in place; the slots were made
                            behind it
    full_page_writes        off in that record, and in that of the next shutdown, behind the slots: pg_upgrade runs the
                            new cluster so, as it restores and as it makes the slots. Whoever makes one later does it
                            on a server that runs with it on
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import pq

from tidemark.lsn import Lsn
from tidemark.postgres_session import connect_walsender, to_the_same_server
from tidemark.source.slot import Server

_PAGE_HEADER: Final = struct.Struct("<HHIQI4x")
_LONG_PAGE_HEADER: Final = struct.Struct("<HHIQI4xQII")
_RECORD_HEADER: Final = struct.Struct("<IIQBBxxI")
# Of a checkpoint's data (catalog/pg_control.h), behind two bytes on how long it is: redo, two timelines, and whether
# full_page_writes were on.
_CHECKPOINT: Final = struct.Struct("<2xQII?")
_SHUT_DOWN: Final = (0, 0x00)  # resource manager and kind of a record
_CHECKPOINT_ONLINE: Final = (0, 0x10)
_ALIGNMENT: Final = 8
_XLOG_DATA: Final = ord("w")
_XLOG_DATA_BYTES: Final = 25  # the header of such a message, see `source.replication`
_MOST_BYTES: Final = 64 * 2**20
_BYTES_BEHIND: Final = 2**20  # in which pg_upgrade makes the other slots, some hundred bytes each


class Untold(Exception):
    """Half a sentence on why the WAL does not tell. Internal."""


@dataclass(frozen=True, slots=True)
class _Record:
    """`data` is what of it lies before the end that was asked for."""

    at_lsn: int
    before_lsn: int
    xid: int
    kind: tuple[int, int]
    data: bytes

    def is_shutdown_without_full_page_writes(self) -> bool:
        """Raises Untold where a shutdown's checkpoint is not what it is known to be."""
        if self.kind != _SHUT_DOWN:
            return False
        if len(self.data) < _CHECKPOINT.size:
            raise Untold("its WAL cannot be read")
        redo_lsn, _, _, full_page_writes = _CHECKPOINT.unpack_from(self.data)
        if redo_lsn != self.at_lsn:
            raise Untold("its WAL cannot be read")
        return not full_page_writes


def require_made_by_upgrade(source: psycopg.Connection[Any], server: Server, lsn: Lsn) -> None:
    """Raise Untold unless `pg_upgrade` made the slot that begins at `lsn`, the WAL with which it left the server is
    still there, and no transaction wrote anything from its beginning to `lsn`. Read as a standby would, which takes the
    right to replicate, and no more.

    That the WAL begins there is not enough: after a later pg_resetwal it does, too, and what applications wrote before
    that is nowhere in it. Nor is a transaction id: of a server that crashed, pg_resetwal takes an old one.
    """
    row = source.execute(
        "SELECT current_setting('full_page_writes'),"
        " (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size')"
    ).fetchone()
    assert row is not None
    full_page_writes, segment_bytes = row
    if full_page_writes != "on":
        raise Untold("the server runs with full_page_writes = off, so nothing shows that pg_upgrade made the slot")
    if server.timeline != 1:
        raise Untold(f"the server is on timeline {server.timeline} by now")
    start = Lsn(lsn - lsn % segment_bytes)
    if lsn - start > _MOST_BYTES:
        raise Untold("the slot begins too far from where its WAL does")
    end = Lsn(min(lsn + _BYTES_BEHIND, server.flush_lsn))
    if not _made_by_upgrade(_records(_received(source, start, end), start, end, int(server.system_identifier)), lsn):
        raise Untold("pg_upgrade did not make the slot, and what was written before it was made, nobody knows")


def _made_by_upgrade(records: Iterator[_Record], lsn: Lsn) -> bool:
    """Whether the server ran with full_page_writes = off before the WAL began, and still at the first checkpoint behind
    `lsn`, with which `pg_upgrade` shuts it down. Raises Untold where the WAL does not begin, or has transactions."""
    first = next(records, None)
    if first is None or first.before_lsn != 0:
        raise Untold("the first WAL of the new cluster is gone")
    if first.xid or not first.is_shutdown_without_full_page_writes():
        return False
    for record in records:
        if record.at_lsn >= lsn and record.kind in (_SHUT_DOWN, _CHECKPOINT_ONLINE):
            return record.is_shutdown_without_full_page_writes()
        if record.xid and record.at_lsn < lsn:
            raise Untold("transactions wrote to the new cluster before the slot was made")
        if record.xid:
            return False
    return False


def _received(source: psycopg.Connection[Any], start: Lsn, end: Lsn) -> bytes:
    """The WAL of timeline 1 in [start, end), page headers and all."""
    received = bytearray()
    with closing(connect_walsender(to_the_same_server(source), application_name="tidemark")) as walsender:
        connection = walsender.pgconn
        result = connection.exec_(f"START_REPLICATION PHYSICAL {start} TIMELINE 1".encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise Untold("the server does not send its WAL to this role")
        while len(received) < end - start:
            try:
                size, message = connection.get_copy_data(0)
            except psycopg.Error:
                size, message = -1, memoryview(b"")
            if size < 0:
                raise Untold("the first WAL of the new cluster is gone")
            if message[0] == _XLOG_DATA:
                received += message[_XLOG_DATA_BYTES:]
    return bytes(received[: end - start])


def _records(wal: bytes, start: Lsn, end: Lsn, system_identifier: int) -> Iterator[_Record]:
    """Each record that begins in [start, end). `start` is that of a segment. Raises Untold where the bytes are no WAL
    of this server.

    Grammar (access/xlog_internal.h, access/xlogrecord.h): pages, each with a header, the segment's first with a long
    one; through them, without the headers, records of `xl_tot_len` bytes, each begins at a multiple of eight.
    """
    page_bytes = _check_long_header(wal, system_identifier)
    body = bytearray()
    for page in range(0, len(wal), page_bytes):
        header = _LONG_PAGE_HEADER if page == 0 else _PAGE_HEADER
        body += wal[page + header.size : page + page_bytes]

    def lsn_of(offset: int) -> int:
        first = page_bytes - _LONG_PAGE_HEADER.size
        if offset < first:
            return start + _LONG_PAGE_HEADER.size + offset
        pages, rest = divmod(offset - first, page_bytes - _PAGE_HEADER.size)
        return start + (pages + 1) * page_bytes + _PAGE_HEADER.size + rest

    offset, before = 0, None
    while (at := lsn_of(offset)) < end:
        if offset + _RECORD_HEADER.size > len(body):
            return
        size, xid, before_lsn, info, manager, _ = _RECORD_HEADER.unpack_from(body, offset)
        if size < _RECORD_HEADER.size or (before is not None and before_lsn != before):
            raise Untold("its WAL cannot be read")
        data = bytes(body[offset + _RECORD_HEADER.size : offset + size])
        yield _Record(at, before_lsn, xid, (manager, info & 0xF0), data)
        before = at
        offset += -(-size // _ALIGNMENT) * _ALIGNMENT


def _check_long_header(wal: bytes, system_identifier: int) -> int:
    """The size of a page. What is not the server's own, or of a machine with another order of bytes, is told here."""
    if len(wal) < _LONG_PAGE_HEADER.size + _RECORD_HEADER.size:
        raise Untold("its WAL cannot be read")
    *_, identifier, _, page_bytes = _LONG_PAGE_HEADER.unpack_from(wal)
    if identifier != system_identifier:
        raise Untold("its WAL cannot be read")
    return int(page_bytes)
