"""The rare messages of pgoutput, one at a time: bytes -> records. The frequent ones are decoded by column in `decoder`.

Grammar of one transaction (protocol 1, text format, logical messages on; PostgreSQL documentation, 54.9 "Logical Replication
Message Formats"); all integers are big-endian, all strings end with a zero byte:

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

A non-transactional Message may stand anywhere, also between transactions. Every parser consumes its message exactly or raises
MalformedMessage.
"""

from __future__ import annotations

import struct
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
    """What the stream says of a table, in force for the changes behind it until the next one with the same OID."""

    relation_oid: int
    table: TableName
    identity: Identity
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """`pg_logical_emit_message`; `commit_lsn` is that of its transaction, None where it is not transactional."""

    prefix: str
    content: bytes
    transactional: bool
    lsn: Lsn
    commit_lsn: Lsn | None


def widen_xids(xid32: NDArray[np.uint32], next_xid: int) -> NDArray[np.int64]:
    """BEGIN's 32-bit transaction ids -> the 64-bit ids nearest to `next_xid`, with a difference in [-2^31, 2^31)."""
    difference = (xid32.astype(np.int64) - next_xid + 2**31) % 2**32 - 2**31
    return next_xid + difference
