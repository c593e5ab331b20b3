"""Joins messages in one buffer (`Buffer`), and defines the record of their order and transactions (`OrderedMessages`).

`decoder` computes that record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidemark.errors import MalformedMessage
from tidemark.lsn import Lsn
from tidemark.pgoutput.blocks import Commits
from tidemark.pgoutput.conversion import PADDING
from tidemark.schema.values import Mask, Positions

BEGIN, COMMIT, INSERT, UPDATE, DELETE, TRUNCATE = b"BCIUDT"
RELATION, TYPE, ORIGIN, MESSAGE = b"RYOM"

_KNOWN: Final = np.isin(np.arange(256), np.frombuffer(b"BCORYIUDTM", np.uint8))


class BufferedTruncate(NamedTuple):
    """The truncation of one relation: the index of its message, and its ordinal in the transaction."""

    message: int
    relation_oid: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class OrderedMessages:
    """The order of the messages in a buffer. `transaction` (an index), `inside` (whether the message is in a
    transaction) and `ordinal` have one element per message. `commit_lsn`, `committed_at` and `xid` have one per
    transaction."""

    transaction: Positions
    inside: Mask
    ordinal: Positions
    commit_lsn: Positions
    committed_at: Positions
    xid: Positions
    commits: Commits

    def transaction_at(self, index: int) -> tuple[Lsn | None, int | None]:
        """Commit LSN and transaction id of the message's transaction; None, None outside of a transaction."""
        if not self.inside[index]:
            return None, None
        transaction = self.transaction[index]
        return Lsn(int(self.commit_lsn[transaction])), int(self.xid[transaction])


@dataclass(frozen=True, slots=True)
class Buffer:
    """Messages in one buffer: message i is `data[starts[i]:ends[i]]`."""

    data: NDArray[np.uint8]
    starts: Positions
    ends: Positions
    kinds: NDArray[np.uint8]

    @classmethod
    def of(cls, payloads: Sequence[bytes | memoryview], skip: int) -> Buffer:
        """Join the messages without their first `skip` bytes. Raises MalformedMessage for an empty message or an
        unknown kind."""
        lengths = np.fromiter(map(len, payloads), np.int64, len(payloads))
        if (lengths <= skip).any():
            raise MalformedMessage(detail="an empty message")
        data = np.frombuffer(b"".join(chain(payloads, (PADDING,))), np.uint8)
        ends = np.cumsum(lengths)
        starts = ends - lengths + skip
        kinds = data[starts]
        is_known = _KNOWN[kinds]
        if not is_known.all():
            kind = int(kinds[np.argmin(is_known)])
            raise MalformedMessage(detail=f"a message of unknown kind 0x{kind:02X}")
        return cls(data, starts, ends, kinds)

    def message(self, index: int) -> bytes:
        return self.data[self.starts[index] : self.ends[index]].tobytes()

    def check_length(self, index: NDArray[np.intp], length: int, kind: str) -> None:
        """Raises MalformedMessage if one of these messages has another length."""
        if (self.ends[index] - self.starts[index] != length).any():
            raise MalformedMessage(detail=f"{kind} is not {length} bytes long")
