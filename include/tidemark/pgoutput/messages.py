"""Decodes the rare messages of pgoutput, one at a time: bytes -> records. `decoder` decodes the frequent ones by
column.

Grammar of one transaction (protocol 1, text format, logical messages on; PostgreSQL documentation, 54.9 "Logical
Replication Message Formats"); all integers are big-endian, all strings end with a zero byte:

    transaction = Begin [Origin] { Type | Relation | Insert | Update | Delete | Truncate | Message } Commit
    Begin    'B' int64 commit LSN, int64 commit time, int32 xid
    Commit   'C' int8 flags (0), int64 commit LSN, int64 end LSN, int64 commit time
    Origin   'O' int64 LSN, string name
    Relation 'R' int32 oid, string schema, string table, int8 identity (d|n|f|i), int16 n,
                 n x (int8 flags (1 = part of the identity), string name, int32 type oid, int32 typmod)
    Type     'Y' int32 oid, string schema, string name
    Insert   'I' int32 oid, 'N' tuple
    Update   'U' int32 oid, [ 'K' tuple | 'O' tuple ], 'N' tuple
    Delete   'D' int32 oid, ( 'K' tuple | 'O' tuple )
    Truncate 'T' int32 n, int8 options (1 cascade, 2 restart identity), n x int32 oid
    Message  'M' int8 flags (1 = transactional), int64 LSN, string prefix, int32 n, n bytes
    tuple    = int16 n, n x ( 'n' | 'u' | 't' int32 length, bytes )

A non-transactional Message may stand anywhere, also between transactions. Every parser consumes its message
exactly or raises MalformedMessage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tidemark.errors import MalformedMessage
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.schema.table import Identity

# Microseconds from the Unix epoch to PostgreSQL's, 2000-01-01.
POSTGRES_EPOCH_US: Final = 946_684_800_000_000

_IDENTITIES: Final[dict[bytes, Identity]] = {b"d": "default", b"f": "full", b"i": "index", b"n": "nothing"}


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """`in_identity`: part of the replica identity, so that old tuples carry it (under FULL every column is)."""

    name: str
    type_oid: int
    typmod: int
    in_identity: bool


@dataclass(frozen=True, slots=True)
class RelationMessage:
    """What the stream says of a table, in force for the changes behind it until the next one with the same OID; `xid`
    is the id of the transaction in which it stands."""

    relation_oid: int
    table: TableName
    identity: Identity
    columns: tuple[RelationColumn, ...]
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """`pg_logical_emit_message`; `commit_lsn` and `xid` are those of its transaction, None if it is not
    transactional. Prefix and content are any login's words: a byte of the prefix that is not UTF-8 is replaced."""

    prefix: str
    content: bytes
    transactional: bool
    lsn: Lsn
    commit_lsn: Lsn | None
    xid: int | None


def widen_xids(xid32: NDArray[np.uint32], next_xid: int) -> NDArray[np.int64]:
    """BEGIN's 32-bit transaction ids -> the 64-bit ids nearest to `next_xid`, with a difference in [-2^31, 2^31)."""
    difference = (xid32.astype(np.int64) - next_xid + 2**31) % 2**32 - 2**31
    return next_xid + difference


def parse_relation(message: bytes, xid: int | None = None) -> RelationMessage:
    """A schema name is empty for pg_catalog."""
    reader = _MessageReader(message, "RELATION")
    oid = reader.uint32()
    schema, name = reader.string() or "pg_catalog", reader.string()
    identity = _IDENTITIES.get(reader.take(1))
    if identity is None:
        raise MalformedMessage(detail=f"RELATION {oid} has an unknown replica identity")
    columns = []
    for _ in range(reader.uint16()):
        flags = reader.uint8()
        if flags > 1:
            raise MalformedMessage(detail=f"RELATION {oid} has a column with flags {flags}")
        columns.append(RelationColumn(reader.string(), reader.uint32(), reader.int32(), bool(flags)))
    reader.end()
    if len({column.name for column in columns}) < len(columns):
        # A value of one would stand under the other.
        raise MalformedMessage(detail=f"RELATION {oid} has two columns of one name")
    return RelationMessage(oid, TableName(schema, name), identity, tuple(columns), xid)


def parse_truncate(message: bytes) -> tuple[int, ...]:
    """The relations truncated by one statement; each is one change, in this order."""
    reader = _MessageReader(message, "TRUNCATE")
    count, options = reader.uint32(), reader.uint8()
    if options > 3:
        raise MalformedMessage(detail=f"TRUNCATE with options {options}")
    oids = struct.unpack(f">{count}I", reader.take(4 * count))
    reader.end()
    return oids


def parse_logical(message: bytes, commit_lsn: Lsn | None, xid: int | None) -> LogicalMessage:
    """`commit_lsn` and `xid` are those of the transaction in which the message stands, if it stands in one."""
    reader = _MessageReader(message, "MESSAGE")
    flags = reader.uint8()
    if flags > 1 or (flags == 1 and commit_lsn is None):
        raise MalformedMessage(detail=f"a MESSAGE with flags {flags} stands in the wrong place")
    lsn, prefix = Lsn(reader.uint64()), reader.string("replace")
    content = reader.take(reader.uint32())
    reader.end()
    if flags == 0:
        return LogicalMessage(prefix, content, False, lsn, None, None)
    return LogicalMessage(prefix, content, True, lsn, commit_lsn, xid)


def check_type(message: bytes) -> None:
    """TYPE names a type's OID; the catalogue is read instead, so the message is only checked."""
    reader = _MessageReader(message, "TYPE")
    reader.uint32()
    reader.string()
    reader.string()
    reader.end()


def check_origin(message: bytes) -> None:
    """ORIGIN tells of a transaction that was replicated to the source; it changes nothing here."""
    reader = _MessageReader(message, "ORIGIN")
    reader.uint64()
    reader.string()
    reader.end()


def index_of_commit(payloads: Sequence[bytes], skip: int, commit_lsn: Lsn) -> int:
    """Where in these messages, each behind `skip` bytes, the COMMIT of a transaction stands, looked for from the end.
    Raises ValueError if it is not among them."""
    begin = b"C\0" + int(commit_lsn).to_bytes(8, "big")
    for index in range(len(payloads) - 1, -1, -1):
        if payloads[index].startswith(begin, skip):
            return index
    raise ValueError(f"no COMMIT at {commit_lsn}")


def relations_among(payloads: Iterable[bytes], skip: int) -> dict[int, bytes]:
    """The last RELATION message of each relation among these messages, each behind `skip` bytes, by OID."""
    relations = (payload[skip:] for payload in payloads if payload[skip] == ord("R"))
    return {int.from_bytes(relation[1:5], "big"): relation for relation in relations}


class _MessageReader:
    """Consumes one message behind its kind byte; every method raises MalformedMessage if the bytes run out."""

    __slots__ = ("_at", "_kind", "_message")

    def __init__(self, message: bytes, kind: str) -> None:
        self._message = message
        self._kind = kind
        self._at = 1

    def take(self, count: int) -> bytes:
        piece = self._message[self._at : self._at + count]
        if len(piece) < count:
            raise MalformedMessage(detail=f"{self._kind} ends early, after {len(self._message)} bytes")
        self._at += count
        return piece

    def uint8(self) -> int:
        return self.take(1)[0]

    def uint16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def uint32(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def uint64(self) -> int:
        return int.from_bytes(self.take(8), "big")

    def string(self, errors: str = "strict") -> str:
        end = self._message.find(b"\0", self._at)
        if end < 0:
            raise MalformedMessage(detail=f"{self._kind} holds a string without an end")
        text = self._message[self._at : end]
        self._at = end + 1
        try:
            return text.decode(errors=errors)
        except UnicodeDecodeError:
            raise MalformedMessage(detail=f"{self._kind} holds a name that is not UTF-8") from None

    def end(self) -> None:
        if self._at != len(self._message):
            raise MalformedMessage(detail=f"{self._kind} has {len(self._message) - self._at} bytes left over")
