"""A mark of the last run, at the source, that `pg_upgrade` carries over; and what a new cluster shows of its upgrade.

The mark is a default that the capture's role has in the source's database, which any role may give itself and which no
session of Tidemark heeds, since each brings an application_name of its own:

    application_name = 'tidemark upgrade: shop=0f6d8e1c-aaaa-bbbb-cccc-0123456789ab/776 other=- ~old=…/512'
                                          └ pipeline, attempt of the run, id of its heartbeat's transaction
                        other: no run has marked yet; ~old: was upgraded, its runs mark no more

A run writes it in the very transaction of its heartbeat, and only where nothing else was under way since its look at
the catalogue began. What a new cluster shows (PostgreSQL 15 to 18, src/bin/pg_upgrade):

    pg_db_role_setting                the marks of the state that was upgraded (pg_dumpall, global objects)
    datfrozenxid of template0         the next transaction id of that state (set_frozenxids)
    the first record of its WAL       has no record before it: pg_resetwal wrote it, once all was in place; the slots
                                      were made behind it
    full_page_writes                  off in that record, and in that of the next shutdown, behind the slots: pg_upgrade
                                      runs the new cluster so, as it restores and as it makes the slots. Whoever makes
                                      one later does it on a server that runs with it on
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import pq, sql

from tidemark.config import PipelineConfig
from tidemark.lsn import Lsn
from tidemark.postgres_session import connect_walsender, to_the_same_server
from tidemark.source.slot import Server

_SETTING: Final = "application_name"
_PREFIX: Final = "tidemark upgrade: "

# Of any role in any database; a database may be left out, and the role too.
_SETTINGS: Final = "SELECT unnest(setconfig) FROM pg_db_role_setting"
_OWN_SETTINGS: Final = """
    SELECT unnest(s.setconfig) FROM pg_db_role_setting s
     WHERE s.setrole = (SELECT oid FROM pg_roles WHERE rolname = current_user)
       AND s.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
# Two pipelines may share role and database.
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('tidemark upgrade', 0))"


@dataclass(frozen=True, slots=True)
class Mark:
    """`attempt` is that of the lease under which a run drained, `xid` the 64-bit id of its heartbeat's transaction;
    None where no run has marked yet. Of a pipeline that `is_done` no run marks any more."""

    pipeline: str
    attempt: str | None = None
    xid: int | None = None
    is_done: bool = False

    def __str__(self) -> str:
        done = "~" if self.is_done else ""
        return f"{done}{self.pipeline}=" + ("-" if self.attempt is None else f"{self.attempt}/{self.xid}")

    @classmethod
    def parse(cls, text: str) -> Mark:
        """Read what str() gives. Raises ValueError on anything else."""
        pipeline, _, run = text.partition("=")
        is_done, pipeline = pipeline.startswith("~"), pipeline.removeprefix("~")
        if run == "-":
            return cls(pipeline, is_done=is_done)
        attempt, xid = run.split("/")
        return cls(pipeline, attempt, int(xid), is_done)


class NameTaken(Exception):
    """The role has a default of that name in the source's database that is not Tidemark's. Internal."""


def marks(source: psycopg.Connection[Any]) -> list[Mark]:
    """Those of all pipelines that capture from the server."""
    return [mark for own in map(_marks_in, _settings(source, _SETTINGS)) for mark in own.values()]


def own(source: psycopg.Connection[Any], config: PipelineConfig) -> Mark | None:
    """The pipeline's own; None where no upgrade was announced."""
    return _own(source).get(config.pipeline)


def announce(source: psycopg.Connection[Any], config: PipelineConfig) -> Mark:
    """Let every run mark from now on; the mark that there is. Raises NameTaken."""
    if any(name == _SETTING and not value.startswith(_PREFIX) for name, value in _pairs(source)):
        raise NameTaken
    with source.transaction():
        source.execute(_LOCK)
        marks = _own(source)
        if config.pipeline not in marks or marks[config.pipeline].is_done:
            marks[config.pipeline] = Mark(config.pipeline)
            _write(source, marks)
    return marks[config.pipeline]


def take_back(source: psycopg.Connection[Any], config: PipelineConfig) -> bool:
    """Remove the pipeline's mark; False where it has none."""
    with source.transaction():
        source.execute(_LOCK)
        marks = _own(source)
        if marks.pop(config.pipeline, None) is None:
            return False
        _write(source, marks)
    return True


def end(source: psycopg.Connection[Any], config: PipelineConfig) -> None:
    """The cluster was upgraded, and this pipeline goes on there. Its mark stays, for the others to count."""
    with source.transaction():
        source.execute(_LOCK)
        marks = _own(source)
        mark = marks.get(config.pipeline)
        if mark is not None:
            _write(source, {**marks, mark.pipeline: Mark(mark.pipeline, mark.attempt, mark.xid, is_done=True)})


@dataclass(frozen=True, slots=True)
class Marking:
    """A run that shall mark. `next_xid` is the id that the next transaction gets, None where others are under way."""

    pipeline: str
    next_xid: int | None

    @classmethod
    def of_run(cls, source: psycopg.Connection[Any], config: PipelineConfig) -> Marking | None:
        """None where no upgrade was announced. Called before the run's look at the catalogue."""
        mark = own(source, config)
        if mark is None or mark.is_done:
            return None
        row = source.execute(
            "SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint FROM pg_current_snapshot() s"
        ).fetchone()
        assert row is not None
        return cls(config.pipeline, row[1] if row[0] == row[1] else None)

    def write(self, source: psycopg.Connection[Any], attempt: str, xid: int) -> Mark:
        """In the heartbeat's transaction, whose id is `xid`. If it is not the next one since before the look, something
        may have been altered behind that, and the mark says nothing."""
        mark = Mark(self.pipeline, attempt, xid) if xid == self.next_xid else Mark(self.pipeline)
        source.execute(_LOCK)
        _write(source, {**_own(source), self.pipeline: mark})
        return mark


def upgraded_at_xid(source: psycopg.Connection[Any]) -> int | None:
    """By the low 32 bits, the next transaction id of the state that `pg_upgrade` took over; None where template0 does
    not say."""
    row = source.execute("SELECT datfrozenxid::text::bigint FROM pg_database WHERE datname = 'template0'").fetchone()
    return None if row is None else int(row[0])


def is_restored(source: psycopg.Connection[Any], publication: str, before_xid: int) -> bool:
    """Whether all that makes the publication's tables members of it, and partitions of others, was written before that
    transaction, by its low 32 bits."""
    row = source.execute(
        """
        WITH written (xmin) AS (
            SELECT xmin FROM pg_publication WHERE pubname = %(publication)s
            UNION ALL
            SELECT r.xmin FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
             WHERE p.pubname = %(publication)s
            UNION ALL
            SELECT n.xmin FROM pg_publication_namespace n JOIN pg_publication p ON p.oid = n.pnpubid
             WHERE p.pubname = %(publication)s
            UNION ALL
            SELECT xmin FROM pg_inherits)
        SELECT coalesce(bool_and(age(xmin) > age(%(before)s::text::xid)), false) FROM written
        """,
        {"publication": publication, "before": before_xid},
    ).fetchone()
    return row is not None and bool(row[0])


# --- the beginning of the WAL ---------------------------------------------------------------------------------------

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


# --- the setting ----------------------------------------------------------------------------------------------------


def _settings(source: psycopg.Connection[Any], query: str) -> list[str]:
    return [setting for (setting,) in source.execute(query.encode()).fetchall()]


def _pairs(source: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    pairs = [setting.partition("=") for setting in _settings(source, _OWN_SETTINGS)]
    return [(name, value) for name, _, value in pairs]


def _own(source: psycopg.Connection[Any]) -> dict[str, Mark]:
    marks: dict[str, Mark] = {}
    for setting in _settings(source, _OWN_SETTINGS):
        marks |= _marks_in(setting)
    return marks


def _marks_in(setting: str) -> dict[str, Mark]:
    """By pipeline; none in a setting that is not Tidemark's, or that somebody wrote into."""
    name, _, value = setting.partition("=")
    if name != _SETTING or not value.startswith(_PREFIX):
        return {}
    try:
        found = [Mark.parse(text) for text in value.removeprefix(_PREFIX).split()]
    except ValueError:
        return {}
    return {mark.pipeline: mark for mark in found}


def _write(source: psycopg.Connection[Any], own: Mapping[str, Mark]) -> None:
    alter = sql.SQL("ALTER ROLE CURRENT_USER IN DATABASE {} ").format(sql.Identifier(source.info.dbname))
    if own:
        value = _PREFIX + " ".join(str(mark) for _, mark in sorted(own.items()))
        source.execute(alter + sql.SQL("SET application_name = {}").format(sql.Literal(value)))
    else:
        source.execute(alter + sql.SQL("RESET application_name"))
