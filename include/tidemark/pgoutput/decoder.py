"""Decodes a block of pgoutput messages to typed Arrow rows per table, by column. Grammar: `messages`.

    messages ─► Buffer ─► transaction and ordinal of each ─► per relation: relation_rows ─► DecodedBlock

A block is any run of consecutive messages of one replication connection. It is joined into one buffer. Kinds,
transactions and ordinals are computed for all messages at once, then the rows of each relation.

- R1: each row has (commit LSN, ordinal). The ordinal counts every change of the transaction, also of tables that are
  not captured.
- R8: a value that does not fit is text in `_text` and counted. A key value that does not fit makes its table
  `key_unfit`. Bytes that do not follow the grammar raise MalformedMessage. "Unchanged" is a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from tidemark.errors import MalformedMessage
from tidemark.pgoutput.blocks import Commits, DecodedBlock, TableBlock
from tidemark.pgoutput.buffer import (
    BEGIN,
    COMMIT,
    DELETE,
    INSERT,
    MESSAGE,
    ORIGIN,
    RELATION,
    TRUNCATE,
    TYPE,
    UPDATE,
    Buffer,
    BufferedTruncate,
    OrderedMessages,
)
from tidemark.pgoutput.conversion import int64, uint32
from tidemark.pgoutput.messages import (
    POSTGRES_EPOCH_US,
    LogicalMessage,
    RelationMessage,
    check_origin,
    check_type,
    parse_logical,
    parse_relation,
    parse_truncate,
    widen_xids,
)
from tidemark.pgoutput.relation_rows import StreamRelation, decode_rows
from tidemark.schema.table import TableSchema
from tidemark.schema.values import Positions

_BEGIN_BYTES: Final = 21
_COMMIT_BYTES: Final = 26


class Decoder:
    """Decodes the messages of one replication connection. Keeps the open transaction between calls.

    - `schema_for` returns the table definition of a relation; None if the table is not captured. It is called at every
      RELATION message with new content. Changes of tables that are not captured are checked and left out, but still
      count in the ordinals. The returned definition must match the message: columns of its names and types, and a key
      within the columns of its old tuples. Otherwise SchemaDisagrees is raised.
    - `next_xid` is a recent 64-bit transaction id, which widens `_xid`. Without it, `_xid` is the 32 bits of BEGIN.
    - `may_be_redefined`: whether `schema_for` is called at every RELATION message of this relation, even with equal
      content, because the same names may now be other columns.
    - `has_other_identity` is called for a partition that is published through its root, with the partition's RELATION
      message and the root's OID. pgoutput sends that message just before the change, and the change has the root's OID.
      It returns whether the partition identifies old rows by other columns than the root. If so, changes that do not
      identify their row are left out (`relation_rows`).
    - `on_message` is called with each logical message, before `schema_for` is called for the RELATION messages after
      it.
    - `described` are RELATION messages, by OID, that were received on this connection before the first decoded message.
      The server does not repeat them. So each is inserted before the relation's first change, where a new connection
      would have it; `schema_for` sees that it is repeated.
    """

    def __init__(
        self,
        schema_for: Callable[[RelationMessage], TableSchema | None],
        generation: int,
        mask_salt: bytes | None = None,
        next_xid: int | None = None,
        may_be_redefined: Callable[[int], bool] = lambda _: False,
        has_other_identity: Callable[[RelationMessage, int], bool] = lambda _, __: False,
        on_message: Callable[[LogicalMessage], None] = lambda _: None,
        described: Mapping[int, bytes] = MappingProxyType({}),
    ) -> None:
        self._schema_for = schema_for
        self._may_be_redefined = may_be_redefined
        self._has_other_identity = has_other_identity
        self._on_message = on_message
        self._defined_last: RelationMessage | None = None
        self._other_identity_roots: set[int] = set()
        self._generation = generation
        self._salt = mask_salt
        self._next_xid = next_xid
        self._relations: dict[int, StreamRelation] = {}
        self._definitions: dict[int, bytes] = {}
        self._described_before = dict(described)
        self._open: _Transaction | None = None
        self._last_commit_lsn = -1

    @property
    def described(self) -> dict[int, bytes]:
        """The last RELATION message of every relation on this connection, by OID."""
        return {**self._described_before, **self._definitions}

    @property
    def has_partitions_of_another_identity(self) -> bool:
        """Whether `has_other_identity` was true for a partition. The changes of such a partition have the root's
        OID and do not name the partition."""
        return bool(self._other_identity_roots)

    def decode(self, payloads: Sequence[bytes | memoryview], skip: int = 0) -> DecodedBlock:
        """Decode messages in stream order. The first `skip` bytes of each are ignored (25 for raw CopyData with
        XLogData headers). Raises MalformedMessage; after that, the decoder cannot be used any more."""
        block, repeated = Buffer.of(payloads, skip), frozenset[int]()
        if self._described_before and (missing := self._not_described(block)):
            block = Buffer.of(_with_inserted(payloads, skip, missing), skip)
            repeated = frozenset(index + before for before, (index, _) in enumerate(missing))
        ordered = self._order(block)
        messages: list[LogicalMessage] = []
        changes: list[TableBlock] = []
        truncates: list[BufferedTruncate] = []
        defined_at: dict[int, int] = {}
        piece_start = 0
        self._check_partition(block, 0)
        is_rare = np.isin(block.kinds, [RELATION, TYPE, ORIGIN, MESSAGE, TRUNCATE])
        for index in np.flatnonzero(is_rare).tolist():
            kind, message = int(block.kinds[index]), block.message(index)
            if kind == RELATION:
                relation = parse_relation(message, ordered.transaction_at(index)[1])
                if index in repeated:
                    relation = replace(relation, is_repeated=True)
                oid = relation.relation_oid
                self._defined_last = relation
                self._check_partition(block, index + 1)
                is_known = self._definitions.get(oid) == message
                if is_known and not self._may_be_redefined(oid):
                    continue
                schema = self._schema_for(relation)
                if is_known and self._relations[oid].schema == schema:
                    continue
                if oid in self._definitions:
                    # Changes before this message have the definition that it replaces.
                    changes += self._decode_piece(block, ordered, piece_start, index, truncates, defined_at)
                    piece_start, truncates, defined_at = index, [], {}
                self._relations[oid] = StreamRelation.of(relation, schema, self._salt)
                self._definitions[oid] = message
                defined_at[oid] = index
            elif kind == TRUNCATE:
                ordinal = int(ordered.ordinal[index])
                oids = parse_truncate(message)
                truncates += [BufferedTruncate(index, oid, ordinal + i) for i, oid in enumerate(oids)]
            elif kind == MESSAGE:
                messages.append(parse_logical(message, *ordered.transaction_at(index)))
                self._on_message(messages[-1])
            elif kind == TYPE:
                check_type(message)
            else:
                check_origin(message)
        changes += self._decode_piece(block, ordered, piece_start, len(block.kinds), truncates, defined_at)
        return DecodedBlock(tuple(changes), ordered.commits, tuple(messages))

    def _not_described(self, block: Buffer) -> list[tuple[int, bytes]]:
        """The RELATION messages of `described` that this block needs, each with the index of the message that it is
        inserted before. Such a message is removed from `described`, even if the block has a newer one for its
        relation."""
        kinds = block.kinds
        starts, sizes = block.starts, block.ends - block.starts
        of_relation = np.flatnonzero(np.isin(kinds, [INSERT, UPDATE, DELETE, RELATION]) & (sizes >= 5))
        oids = uint32(block.data, starts[of_relation] + 1)
        first_use = dict(zip(*(each.tolist() for each in np.unique(oids, return_index=True)), strict=True))
        first_use = {oid: int(of_relation[at]) for oid, at in first_use.items()}
        for index in np.flatnonzero(kinds == TRUNCATE).tolist():
            for oid in parse_truncate(block.message(index)):
                first_use[oid] = min(index, first_use.get(oid, index))
        missing = []
        for oid in self._described_before.keys() & first_use.keys():
            message, index = self._described_before.pop(oid), first_use[oid]
            if kinds[index] != RELATION:
                # A partition's RELATION message comes just before its change, which has the root's OID.
                while index and kinds[index - 1] == RELATION:
                    index -= 1
                missing.append((index, message))
        return sorted(missing)

    def _check_partition(self, block: Buffer, index: int) -> None:
        """If the message at `index` is a change with another OID than the RELATION message just before it, that
        relation is a partition: record the root if the partition has another identity."""
        relation = self._defined_last
        if relation is None or index >= len(block.kinds):
            return
        self._defined_last = None
        at = int(block.starts[index])
        if block.kinds[index] in (INSERT, UPDATE, DELETE) and block.ends[index] - at >= 6:
            oid = int(uint32(block.data, np.array([at + 1]))[0])
            if oid != relation.relation_oid and self._has_other_identity(relation, oid):
                self._other_identity_roots.add(oid)

    def _order(self, block: Buffer) -> OrderedMessages:
        """Compute each message's transaction, and each change's ordinal in it (R1)."""
        kinds, data = block.kinds, block.data
        begins, commits = np.flatnonzero(kinds == BEGIN), np.flatnonzero(kinds == COMMIT)
        block.check_length(begins, _BEGIN_BYTES, "BEGIN")
        block.check_length(commits, _COMMIT_BYTES, "COMMIT")
        was_open = self._open is not None
        bounds = np.sort(np.concatenate((begins, commits)))
        # BEGIN and COMMIT alternate; a commit comes first if a transaction is open.
        expected = np.resize([COMMIT, BEGIN] if was_open else [BEGIN, COMMIT], len(bounds))
        if (kinds[bounds] != expected).any():
            raise MalformedMessage(detail="BEGIN and COMMIT do not alternate")
        # Transaction 0 is the one that was open before the block. The block's own transactions follow.
        carried = self._open or _Transaction(-1, 0, 0, 0)
        transaction = np.cumsum(kinds == BEGIN)
        at = block.starts[begins]
        commit_lsn = np.concatenate(([carried.commit_lsn], int64(data, at + 1)))
        committed_at = np.concatenate(([carried.committed_at], int64(data, at + 9) + POSTGRES_EPOCH_US))
        xid = np.concatenate(([carried.xid], uint32(data, at + 17)))
        if (np.diff(np.concatenate(([self._last_commit_lsn], commit_lsn[0 if was_open else 1 :]))) <= 0).any():
            raise MalformedMessage(detail="the commit LSNs of two transactions do not ascend")

        at = block.starts[commits]
        ended = transaction[commits]
        if (data[at + 1] != 0).any() or (int64(data, at + 2) != commit_lsn[ended]).any():
            raise MalformedMessage(detail="a COMMIT does not belong to its BEGIN")
        end_lsn = int64(data, at + 10)
        if (end_lsn <= commit_lsn[ended]).any():
            raise MalformedMessage(detail="a transaction ends before its commit record")

        inside = (np.cumsum(kinds == BEGIN) - np.cumsum(kinds == COMMIT) + was_open) == 1
        inside[commits] = True
        if not (inside | (kinds == MESSAGE)).all():
            raise MalformedMessage(detail="a change stands outside a transaction")

        changes = ((kinds == INSERT) | (kinds == UPDATE) | (kinds == DELETE)).astype(np.int64)
        truncates = np.flatnonzero(kinds == TRUNCATE)
        changes[truncates] = uint32(data, block.starts[truncates] + 1)
        total = np.cumsum(changes)
        before = total - changes
        first = np.concatenate(([-carried.next_ordinal], before[begins]))
        ordinal = before - first[transaction]

        self._open = None
        if len(kinds):
            last = int(transaction[-1])
            if inside[-1] and kinds[-1] != COMMIT:
                next_ordinal = int(total[-1] - first[last])
                self._open = _Transaction(int(commit_lsn[last]), int(committed_at[last]), int(xid[last]), next_ordinal)
            if len(commits):
                self._last_commit_lsn = int(commit_lsn[ended[-1]])
        elif was_open:
            self._open = carried
        ordered_commits = Commits(commit_lsn[ended], end_lsn, xid[ended].astype(np.uint32), committed_at[ended])
        return OrderedMessages(
            transaction, inside, ordinal, commit_lsn, committed_at, self._widen(xid), ordered_commits
        )

    def _widen(self, xid: Positions) -> Positions:
        return xid if self._next_xid is None else widen_xids(xid.astype(np.uint32), self._next_xid)

    def _decode_piece(
        self,
        block: Buffer,
        ordered: OrderedMessages,
        start: int,
        stop: int,
        truncates: list[BufferedTruncate],
        defined_at: dict[int, int],
    ) -> list[TableBlock]:
        """The changes among messages [start, stop). No relation is defined twice among them."""
        kinds = block.kinds[start:stop]
        index = start + np.flatnonzero((kinds == INSERT) | (kinds == UPDATE) | (kinds == DELETE))
        too_short = block.ends[index] - block.starts[index] < 6
        if too_short.any():
            raise MalformedMessage(detail="a change ends before its relation")
        oids = uint32(block.data, block.starts[index] + 1)
        present = [int(oids[0])] if len(oids) and (oids == oids[0]).all() else np.unique(oids).tolist()
        truncated: dict[int, list[BufferedTruncate]] = {}
        for truncate in truncates:
            truncated.setdefault(truncate.relation_oid, []).append(truncate)
        changes = []
        for oid in sorted({*present, *truncated}):
            relation = self._relations.get(oid)
            rows = index if len(present) == 1 and oid in present else index[oids == oid]
            own = truncated.get(oid, [])
            first = min([*rows[:1].tolist(), *(t.message for t in own[:1])])
            if relation is None or first < defined_at.get(oid, -1):
                raise MalformedMessage(detail=f"a change of relation {oid} stands before its RELATION message")
            may_lack = oid in self._other_identity_roots
            decoded = decode_rows(
                block, ordered, relation, rows, own, self._generation, self._salt, may_lack_identity=may_lack
            )
            if decoded is not None:
                changes.append(decoded)
        return changes


def _with_inserted(
    payloads: Sequence[bytes | memoryview], skip: int, messages: Sequence[tuple[int, bytes]]
) -> list[bytes | memoryview]:
    """The payloads with each of `messages` inserted before its index, behind `skip` zero bytes."""
    joined: list[bytes | memoryview] = []
    begin = 0
    for index, message in messages:
        joined += payloads[begin:index]
        joined.append(bytes(skip) + message)
        begin = index
    return [*joined, *payloads[begin:]]


class _Transaction(NamedTuple):
    """The transaction that is open at the end of a block."""

    commit_lsn: int
    committed_at: int
    xid: int
    next_ordinal: int
