"""A block of pgoutput messages -> typed Arrow rows per table, decoded by column (facts in docs/formats.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.lsn import Lsn
from tidemark.pgoutput.messages import LogicalMessage, RelationMessage
from tidemark.schema.table import TableSchema


@dataclass(frozen=True, slots=True)
class TableBlock:
    """Consecutive changes of one table under one definition, in R1 order; `rows` follows `staged_schema(schema)`.

    `counts` maps an operation to its changes (only operations that occur). `unchanged` counts rows with an `_unchanged` mask,
    `moved` rows with an `_old_key`, `converted` per column the values kept in `_text` (R8). `key_unfit` names the key columns
    holding a value that their target type cannot (or NULL): such a table must be parked.
    """

    schema: TableSchema
    rows: pa.RecordBatch
    counts: dict[str, int]
    unchanged: int
    moved: int
    converted: dict[str, int]
    key_unfit: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Commits:
    """The transactions that ended in a block, in stream order: equally long arrays.

    `committed_at` is in microseconds since the Unix epoch, `xid32` as BEGIN carried it.
    """

    commit_lsn: NDArray[np.int64]
    end_lsn: NDArray[np.int64]
    xid32: NDArray[np.uint32]
    committed_at: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.commit_lsn)


@dataclass(frozen=True, slots=True)
class DecodedBlock:
    """What one call of `Decoder.decode` returned. `changes` is in stream order per table, one entry per definition.

    A transaction may begin before the block and end behind it: its changes carry its commit LSN all the same, since BEGIN
    already has it, but only a transaction of `commits` is known to be whole.
    """

    changes: tuple[TableBlock, ...]
    commits: Commits
    messages: tuple[LogicalMessage, ...]

    def split(self, end_lsn: Lsn) -> tuple[DecodedBlock, DecodedBlock]:
        """The part with `commit_lsn < end_lsn`, and the rest (R2). A non-transactional message goes by its own LSN."""
        raise NotImplementedError


class Decoder:
    """Decodes the messages of one replication connection; keeps the open transaction between calls.

    `schema_for` is asked at every RELATION message whose content is new; None means that the table is not captured: its
    changes are skipped, and count in the ordinals all the same. `next_xid`, any 64-bit transaction id of about now, widens
    `_xid`; without it `_xid` is BEGIN's 32 bits.
    """

    def __init__(
        self,
        schema_for: Callable[[RelationMessage], TableSchema | None],
        generation: int,
        mask_salt: bytes | None = None,
        next_xid: int | None = None,
    ) -> None:
        raise NotImplementedError

    @property
    def in_transaction(self) -> bool:
        """Whether the last message left a transaction open."""
        raise NotImplementedError

    def decode(self, payloads: list[bytes], skip: int = 0) -> DecodedBlock:
        """Decode messages in stream order. `skip` bytes in front of each are left out (25 for raw CopyData with XLogData
        headers). Raises MalformedMessage; the decoder is then of no further use."""
        raise NotImplementedError
