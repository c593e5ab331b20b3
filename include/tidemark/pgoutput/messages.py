"""Parses the rare messages of pgoutput, one at a time: bytes -> records.

`decoder` decodes the frequent messages by column.

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
    """One column of a RELATION message. `in_identity`: whether the column is part of the replica identity, so that
    old tuples contain it. Under FULL, every column is."""

    name: str
    type_oid: int
    typmod: int
    in_identity: bool


@dataclass(frozen=True, slots=True)
class RelationMessage:
    """The definition of a table in the stream. It is valid for the changes after it, up to the next one with the
    same OID. `xid` is the id of its transaction.

    `is_repeated`: the server sent it before the first message of this decoder, which repeats it in the first
    transaction that needs it. The server sends another one whenever the definition changes.
    """

    relation_oid: int
    table: TableName
    identity: Identity
    columns: tuple[RelationColumn, ...]
    xid: int | None = None
    is_repeated: bool = False


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message of `pg_logical_emit_message`. `commit_lsn` and `xid` are its transaction's, None if it is not
    transactional.

    Any login may write any prefix and content. Bytes of the prefix that are not UTF-8 are replaced.
    """

    prefix: str
    content: bytes
    transactional: bool
    lsn: Lsn
    commit_lsn: Lsn | None
    xid: int | None


def widen_xids(xid32: NDArray[np.uint32], next_xid: int) -> NDArray[np.int64]:
    """Widen BEGIN's 32-bit transaction ids to the nearest 64-bit ids: they differ from `next_xid` by [-2^31, 2^31)."""
    difference = (xid32.astype(np.int64) - next_xid + 2**31) % 2**32 - 2**31
    return next_xid + difference


def parse_relation(message: bytes, xid: int | None = None) -> RelationMessage:
    """Parse a RELATION message. The schema pg_catalog is sent as an empty name."""
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
        # Columns are matched by name, so a value of one column could be stored as the other's.
        raise MalformedMessage(detail=f"RELATION {oid} has two columns of one name")
    return RelationMessage(oid, TableName(schema, name), identity, tuple(columns), xid)


def parse_truncate(message: bytes) -> tuple[int, ...]:
    """The OIDs of the relations that one statement truncated. Each is one change, in this order."""
    reader = _MessageReader(message, "TRUNCATE")
    count, options = reader.uint32(), reader.uint8()
    if options > 3:
        raise MalformedMessage(detail=f"TRUNCATE with options {options}")
    oids = struct.unpack(f">{count}I", reader.take(4 * count))
    reader.end()
    return oids


def parse_logical(message: bytes, commit_lsn: Lsn | None, xid: int | None) -> LogicalMessage:
    """Parse a logical message. `commit_lsn` and `xid` are those of the transaction around it, None without one."""
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
    """Check a TYPE message, which has the OID and name of a type. It is not used, because types are read from the
    catalogue."""
    reader = _MessageReader(message, "TYPE")
    reader.uint32()
    reader.string()
    reader.string()
    reader.end()


def check_origin(message: bytes) -> None:
    """Check an ORIGIN message, which marks a transaction that was replicated to the source. It is not used."""
    reader = _MessageReader(message, "ORIGIN")
    reader.uint64()
    reader.string()
    reader.end()


def index_of_commit(payloads: Sequence[bytes], skip: int, commit_lsn: Lsn) -> int:
    """The index of the last COMMIT message with this commit LSN, in messages with `skip` bytes before each. Raises
    ValueError without one."""
    begin = b"C\0" + int(commit_lsn).to_bytes(8, "big")
    for index in range(len(payloads) - 1, -1, -1):
        if payloads[index].startswith(begin, skip):
            return index
    raise ValueError(f"no COMMIT at {commit_lsn}")


def relations_among(payloads: Iterable[bytes], skip: int) -> dict[int, bytes]:
    """The last RELATION message of each relation by OID, among messages with `skip` bytes before each."""
    relations = (payload[skip:] for payload in payloads if payload[skip] == ord("R"))
    return {int.from_bytes(relation[1:5], "big"): relation for relation in relations}


class _MessageReader:
    """Reads the fields of one message behind its kind byte. Every method raises MalformedMessage if the bytes run
    out."""

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
