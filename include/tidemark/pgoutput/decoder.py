"""A block of pgoutput messages -> typed Arrow rows per table, decoded by column. Grammar: `messages`.

A block is any run of consecutive messages of one replication connection. It is joined into one buffer, and everything
is worked out for all of its messages at once: kinds, the transaction each belongs to, ordinals; then, per relation,
where column k of every row begins and how long it is, which gives where column k+1 begins. The ranges of a column
become one Arrow array, and `conversion` converts it. No row is ever touched by itself.

Rules kept here. R1: rows carry (commit LSN, ordinal), the ordinal counting every change of the transaction, those of
tables that are not captured included. R8: a value that does not fit is text in `_text` and counted, a key value that
does not fit makes its table `key_unfit`, and bytes that do not follow the grammar raise MalformedMessage. "Unchanged"
is a mask. The old tuple is read through the key's columns only (in a 'K' tuple "n" means "not part of the identity"),
save under FULL, where it also fills unchanged values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.errors import MalformedMessage, SchemaDisagrees
from tidemark.formats.columns import OPERATIONS, staged_schema
from tidemark.lsn import Lsn
from tidemark.names import OLD_KEY_PREFIX, OLD_PREFIX
from tidemark.pgoutput.conversion import (
    NULL,
    PADDING,
    TEXT,
    UNCHANGED,
    Conversion,
    Values,
    int64,
    list_offsets,
    require_salt,
    structs,
    uint32,
    words,
)
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
from tidemark.schema.table import TableSchema
from tidemark.schema.values import Mask, Positions

_KNOWN: Final = np.isin(np.arange(256), np.frombuffer(b"BCORYIUDTM", np.uint8))

_BEGIN, _COMMIT, _INSERT, _UPDATE, _DELETE, _TRUNCATE = b"BCIUDT"
_RELATION, _TYPE, _ORIGIN, _MESSAGE = b"RYOM"
_NEW, _KEY, _OLD = b"NKO"

_BEGIN_BYTES: Final = 21
_COMMIT_BYTES: Final = 26

_OPERATION_CODE: Final = np.zeros(256, np.int8)
_OPERATION_CODE[[_INSERT, _UPDATE, _DELETE, _TRUNCATE]] = range(4)


@dataclass(frozen=True, slots=True)
class TableBlock:
    """Consecutive changes of one table under one definition, in R1 order; `rows` follows `staged_schema(schema)`.

    `counts` maps an operation to its changes (only operations that occur). `unchanged` counts rows with an
    `_unchanged` mask, `moved` rows with an `_old_key`, `converted` per column the rows that keep its text in `_text`
    (R8), those of old keys and old rows not counted. `key_unfit` names the key columns holding a value that their
    target type cannot (or NULL): such a table must be parked.
    """

    schema: TableSchema
    rows: pa.RecordBatch
    counts: dict[str, int]
    unchanged: int
    moved: int
    converted: dict[str, int]
    key_unfit: tuple[str, ...]

    @classmethod
    def of(cls, schema: TableSchema, rows: pa.RecordBatch) -> TableBlock:
        """Count what the rows hold."""
        counts = {v["values"]: v["counts"] for v in rows.column("_op").value_counts().to_pylist()}
        unchanged, text = rows.column("_unchanged"), rows.column("_text")
        converted: dict[str, int] = {}
        if text.null_count < len(text):
            names = text.filter(text.is_valid()).keys.value_counts().to_pylist()
            counted = (v for v in names if not v["values"].startswith((OLD_KEY_PREFIX, OLD_PREFIX)))
            converted = {v["values"]: v["counts"] for v in counted}
        moved, unfit = 0, []
        if schema.key:
            old_key = rows.column("_old_key")
            moved = len(old_key) - old_key.null_count
            for at, name in enumerate(schema.key):
                missing = rows.column(name).null_count - counts.get("truncate", 0)
                # By its place: Arrow reads a text as a path, in which a dot of the name stands between two names.
                missing += pc.struct_field(old_key, [at]).null_count - old_key.null_count
                if missing:
                    unfit.append(name)
        return cls(schema, rows, counts, len(unchanged) - unchanged.null_count, moved, converted, tuple(unfit))

    def split(self, end_lsn: Lsn) -> tuple[TableBlock | None, TableBlock | None]:
        """The rows with `commit_lsn < end_lsn`, and the rest; None for a part without rows."""
        cut = int(np.searchsorted(self.rows.column("_commit_lsn").to_numpy(), int(end_lsn)))
        if cut == 0:
            return None, self
        if cut == self.rows.num_rows:
            return self, None
        return TableBlock.of(self.schema, self.rows.slice(0, cut)), TableBlock.of(self.schema, self.rows.slice(cut))


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

    def slice(self, start: int, stop: int) -> Commits:
        piece = slice(start, stop)
        return Commits(self.commit_lsn[piece], self.end_lsn[piece], self.xid32[piece], self.committed_at[piece])


@dataclass(frozen=True, slots=True)
class DecodedBlock:
    """What one call of `Decoder.decode` returned. `changes` is in stream order per table.

    A transaction may begin before the block and end behind it: its changes carry its commit LSN all the same, since
    BEGIN already has it, but only a transaction of `commits` is known to be whole.
    """

    changes: tuple[TableBlock, ...]
    commits: Commits
    messages: tuple[LogicalMessage, ...]

    def split(self, end_lsn: Lsn) -> tuple[DecodedBlock, DecodedBlock]:
        """The part with `commit_lsn < end_lsn`, and the rest (R2). A non-transactional message goes by its own LSN."""
        halves = [change.split(end_lsn) for change in self.changes]
        cut = int(np.searchsorted(self.commits.commit_lsn, int(end_lsn)))
        below: list[LogicalMessage] = []
        above: list[LogicalMessage] = []
        for message in self.messages:
            lsn = message.lsn if message.commit_lsn is None else message.commit_lsn
            (below if lsn < end_lsn else above).append(message)
        return (
            DecodedBlock(tuple(b for b, _ in halves if b), self.commits.slice(0, cut), tuple(below)),
            DecodedBlock(tuple(a for _, a in halves if a), self.commits.slice(cut, len(self.commits)), tuple(above)),
        )


class Decoder:
    """Decodes the messages of one replication connection; keeps the open transaction between calls.

    `schema_for` is asked at every RELATION message whose content is new; None means that the table is not captured: its
    changes are checked and left out, and count in the ordinals all the same. The definition it returns must follow the
    message: columns of its names and types, the key among the columns that its old tuples carry, else SchemaDisagrees.
    `next_xid`, a 64-bit transaction id of about now, widens `_xid`; without it `_xid` is BEGIN's 32 bits. A relation
    for which `asks_again` is true is asked about at every RELATION message: the same names may be other columns by now.
    """

    def __init__(
        self,
        schema_for: Callable[[RelationMessage], TableSchema | None],
        generation: int,
        mask_salt: bytes | None = None,
        next_xid: int | None = None,
        asks_again: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._schema_for = schema_for
        self._asks_again = asks_again
        self._generation = generation
        self._salt = mask_salt
        self._next_xid = next_xid
        self._relations: dict[int, _Relation] = {}
        self._definitions: dict[int, bytes] = {}
        self._open: _Transaction | None = None
        self._last_commit_lsn = -1

    @property
    def in_transaction(self) -> bool:
        """Whether the last message left a transaction open."""
        return self._open is not None

    def decode(self, payloads: Sequence[bytes | memoryview], skip: int = 0) -> DecodedBlock:
        """Decode messages in stream order. `skip` bytes in front of each are left out (25 for raw CopyData with
        XLogData headers). Raises MalformedMessage; the decoder is then of no further use."""
        block = _Block.of(payloads, skip)
        ordered = self._order(block)
        messages: list[LogicalMessage] = []
        changes: list[TableBlock] = []
        truncates: list[_Truncate] = []
        defined_at: dict[int, int] = {}
        piece_start = 0
        is_rare = np.isin(block.kinds, [_RELATION, _TYPE, _ORIGIN, _MESSAGE, _TRUNCATE])
        for index in np.flatnonzero(is_rare).tolist():
            kind, message = int(block.kinds[index]), block.message(index)
            if kind == _RELATION:
                relation = parse_relation(message, ordered.transaction_at(index)[1])
                oid = relation.relation_oid
                is_known = self._definitions.get(oid) == message
                if is_known and not self._asks_again(oid):
                    continue
                schema = self._schema_for(relation)
                if is_known and self._relations[oid].schema == schema:
                    continue
                if oid in self._definitions:
                    # Changes in front of this one follow the definition that it replaces.
                    changes += self._decode_piece(block, ordered, piece_start, index, truncates, defined_at)
                    piece_start, truncates, defined_at = index, [], {}
                self._relations[oid] = _Relation.of(relation, schema, self._salt)
                self._definitions[oid] = message
                defined_at[oid] = index
            elif kind == _TRUNCATE:
                ordinal = int(ordered.ordinal[index])
                oids = parse_truncate(message).relation_oids
                truncates += [_Truncate(index, oid, ordinal + i) for i, oid in enumerate(oids)]
            elif kind == _MESSAGE:
                messages.append(parse_logical(message, *ordered.transaction_at(index)))
            elif kind == _TYPE:
                check_type(message)
            else:
                check_origin(message)
        changes += self._decode_piece(block, ordered, piece_start, len(block.kinds), truncates, defined_at)
        return DecodedBlock(tuple(changes), ordered.commits, tuple(messages))

    def _order(self, block: _Block) -> _Ordered:
        """Which transaction each message belongs to, and each change's ordinal in it (R1)."""
        kinds, data = block.kinds, block.data
        begins, commits = np.flatnonzero(kinds == _BEGIN), np.flatnonzero(kinds == _COMMIT)
        block.check_length(begins, _BEGIN_BYTES, "BEGIN")
        block.check_length(commits, _COMMIT_BYTES, "COMMIT")
        was_open = self._open is not None
        bounds = np.sort(np.concatenate((begins, commits)))
        # BEGIN and COMMIT alternate; a commit comes first if a transaction is open.
        expected = np.resize([_COMMIT, _BEGIN] if was_open else [_BEGIN, _COMMIT], len(bounds))
        if (kinds[bounds] != expected).any():
            raise MalformedMessage(detail="BEGIN and COMMIT do not alternate")
        # Transaction 0 is the one that was open before; the block's own follow.
        carried = self._open or _Transaction(-1, 0, 0, 0)
        transaction = np.cumsum(kinds == _BEGIN)
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

        inside = (np.cumsum(kinds == _BEGIN) - np.cumsum(kinds == _COMMIT) + was_open) == 1
        inside[commits] = True
        if not (inside | (kinds == _MESSAGE)).all():
            raise MalformedMessage(detail="a change stands outside a transaction")

        changes = ((kinds == _INSERT) | (kinds == _UPDATE) | (kinds == _DELETE)).astype(np.int64)
        truncates = np.flatnonzero(kinds == _TRUNCATE)
        changes[truncates] = uint32(data, block.starts[truncates] + 1)
        total = np.cumsum(changes)
        before = total - changes
        first = np.concatenate(([-carried.next_ordinal], before[begins]))
        ordinal = before - first[transaction]

        self._open = None
        if len(kinds):
            last = int(transaction[-1])
            if inside[-1] and kinds[-1] != _COMMIT:
                next_ordinal = int(total[-1] - first[last])
                self._open = _Transaction(int(commit_lsn[last]), int(committed_at[last]), int(xid[last]), next_ordinal)
            if len(commits):
                self._last_commit_lsn = int(commit_lsn[ended[-1]])
        elif was_open:
            self._open = carried
        ordered_commits = Commits(commit_lsn[ended], end_lsn, xid[ended].astype(np.uint32), committed_at[ended])
        return _Ordered(transaction, inside, ordinal, commit_lsn, committed_at, self._widen(xid), ordered_commits)

    def _widen(self, xid: Positions) -> Positions:
        return xid if self._next_xid is None else widen_xids(xid.astype(np.uint32), self._next_xid)

    def _decode_piece(
        self,
        block: _Block,
        ordered: _Ordered,
        start: int,
        stop: int,
        truncates: list[_Truncate],
        defined_at: dict[int, int],
    ) -> list[TableBlock]:
        """The changes among messages [start, stop), during which no relation is defined twice."""
        kinds = block.kinds[start:stop]
        index = start + np.flatnonzero((kinds == _INSERT) | (kinds == _UPDATE) | (kinds == _DELETE))
        too_short = block.ends[index] - block.starts[index] < 6
        if too_short.any():
            raise MalformedMessage(detail="a change ends before its relation")
        oids = uint32(block.data, block.starts[index] + 1)
        present = [int(oids[0])] if len(oids) and (oids == oids[0]).all() else np.unique(oids).tolist()
        truncated: dict[int, list[_Truncate]] = {}
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
            decoded = _decode_rows(block, ordered, relation, rows, own, self._generation, self._salt)
            if decoded is not None:
                changes.append(decoded)
        return changes


class _Transaction(NamedTuple):
    """The transaction that is open where a block ends."""

    commit_lsn: int
    committed_at: int
    xid: int
    next_ordinal: int


class _Truncate(NamedTuple):
    message: int
    relation_oid: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class _Ordered:
    """Per message its transaction, whether it stands inside one, its ordinal; per transaction LSN, time and xid."""

    transaction: Positions
    inside: Mask
    ordinal: Positions
    commit_lsn: Positions
    committed_at: Positions
    xid: Positions
    commits: Commits

    def transaction_at(self, index: int) -> tuple[Lsn | None, int | None]:
        """Commit LSN and transaction id of the transaction in which a message stands, if it stands in one."""
        if not self.inside[index]:
            return None, None
        transaction = self.transaction[index]
        return Lsn(int(self.commit_lsn[transaction])), int(self.xid[transaction])


@dataclass(frozen=True, slots=True)
class _Block:
    """Messages in one buffer: message i is `data[starts[i]:ends[i]]`."""

    data: NDArray[np.uint8]
    starts: Positions
    ends: Positions
    kinds: NDArray[np.uint8]

    @classmethod
    def of(cls, payloads: Sequence[bytes | memoryview], skip: int) -> _Block:
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
        if (self.ends[index] - self.starts[index] != length).any():
            raise MalformedMessage(detail=f"{kind} is not {length} bytes long")


# --- one relation -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Relation:
    """A relation of the stream with the captured table it is, if any.

    `place[i]` is the captured column at position i of a tuple, -1 if it is left out; `key` are captured columns.
    """

    message: RelationMessage
    schema: TableSchema | None
    place: tuple[int, ...]
    key: tuple[int, ...]
    staged: pa.Schema | None

    @classmethod
    def of(cls, message: RelationMessage, schema: TableSchema | None, salt: bytes | None) -> _Relation:
        if schema is None:
            return cls(message, None, (-1,) * len(message.columns), (), None)
        captured = {column.name: i for i, column in enumerate(schema.columns)}
        sent = {column.name: column for column in message.columns}
        wrong = [c.name for c in schema.columns if c.name not in sent or sent[c.name].type_oid != c.type_oid]
        wrong += [name for name in schema.key if name not in captured or not sent[name].in_identity]
        wrong += [c.name for c in schema.columns if c.mask == "sha256" and c.target != "string"]
        if wrong or schema.identity != message.identity:
            raise SchemaDisagrees(table=schema.table, columns=", ".join(dict.fromkeys(wrong)) or "replica identity")
        require_salt(schema, salt)
        return cls(
            message,
            schema,
            tuple(captured.get(c.name, -1) for c in message.columns),
            tuple(captured[name] for name in schema.key),
            staged_schema(schema),
        )


def _read_tuple(block: _Block, relation: _Relation, at: Positions, ends: Positions) -> tuple[list[Values], Positions]:
    """Tuples of one relation that begin at `at` -> the captured columns, and where each tuple ends."""
    if (at + 2 > ends).any():
        raise MalformedMessage(detail=f"a tuple of relation {relation.message.relation_oid} is missing")
    eight_bytes = words(block.data, "<i8")
    columns = len(relation.place)
    counts = block.data[at].astype(np.int64) << 8 | block.data[at + 1]
    if (counts != columns).any():
        raise MalformedMessage(
            detail=f"a tuple of relation {relation.message.relation_oid} has not the {columns} columns defined"
        )
    values: list[Values | None] = [None] * max(len(relation.place), 1)
    at = at + 2
    for place in relation.place:
        # One read of eight bytes holds the kind and, for text, the length. If it reads beyond the message's end, the
        # next position exceeds that end, and is found out.
        word = eight_bytes[at].byteswap(inplace=True)
        kind = (word >> 56).astype(np.uint8)
        length = (word >> 24) & 0xFFFFFFFF
        is_text = kind == TEXT
        start = at + 5
        if not is_text.all():
            if not (is_text | (kind == NULL) | (kind == UNCHANGED)).all():
                raise MalformedMessage(
                    detail=f"a column of relation {relation.message.relation_oid} is neither text, NULL nor unchanged"
                )
            length *= is_text
            start -= 4 * ~is_text
        at = start + length
        if (at > ends).any():
            raise MalformedMessage(detail=f"a tuple of relation {relation.message.relation_oid} ends early")
        if place >= 0:
            values[place] = Values(kind, start, length)
    return [v for v in values if v is not None], at


@dataclass(frozen=True, slots=True)
class _Tuples:
    """The tuples of rows 0..n: `new` is per captured column what the row holds, in all n
    rows; `old` only in `old_rows`.

    `old_form` is K or O per old row.
    """

    new: list[Values]
    old: list[Values]
    old_rows: NDArray[np.intp]
    old_form: NDArray[np.uint8]


def _read_rows(block: _Block, relation: _Relation, index: NDArray[np.intp], kinds: NDArray[np.uint8]) -> _Tuples:
    """Both tuples of every change, each message consumed exactly. Rows without a new tuple are NULL in all columns."""
    oid = relation.message.relation_oid
    starts, ends = block.starts[index], block.ends[index]
    at = starts + 5
    form = block.data[at]
    is_insert, is_update, is_delete = kinds == _INSERT, kinds == _UPDATE, kinds == _DELETE
    has_old = ((form == _KEY) | (form == _OLD)) & (is_update | is_delete)
    has_new = is_insert | is_update
    if not (has_old | ((form == _NEW) & has_new) | (kinds == _TRUNCATE)).all():
        raise MalformedMessage(detail=f"a change of relation {oid} has no tuple where one must be")
    old_rows = np.flatnonzero(has_old)
    old: list[Values] = []
    if len(old_rows):
        old, after = _read_tuple(block, relation, at[old_rows] + 1, ends[old_rows])
        at[old_rows] = after
    if is_delete.any() and (at[is_delete] != ends[is_delete]).any():
        raise MalformedMessage(detail=f"a DELETE of relation {oid} has bytes left over")
    everywhere = bool(has_new.all())
    new_rows = np.arange(len(index)) if everywhere else np.flatnonzero(has_new)
    at, new_ends = (at, ends) if everywhere else (at[new_rows], ends[new_rows])
    if len(old_rows) and ((at >= new_ends) | (block.data[at] != _NEW)).any():
        raise MalformedMessage(detail=f"an UPDATE of relation {oid} has no new tuple")
    new, after = _read_tuple(block, relation, at + 1, new_ends)
    if (after != new_ends).any():
        raise MalformedMessage(detail=f"a change of relation {oid} has bytes left over")
    if not everywhere:
        spread = []
        for values in new:
            whole = Values(np.full(len(index), NULL, np.uint8), starts.copy(), np.zeros(len(index), np.int64))
            whole.kind[new_rows], whole.start[new_rows], whole.length[new_rows] = (
                values.kind,
                values.start,
                values.length,
            )
            spread.append(whole)
        new = spread
    return _Tuples(new, old, old_rows, form[old_rows])


def _decode_rows(
    block: _Block,
    ordered: _Ordered,
    relation: _Relation,
    changes: NDArray[np.intp],
    truncates: list[_Truncate],
    generation: int,
    salt: bytes | None,
) -> TableBlock | None:
    """One relation's inserts, updates and deletes (by message index), and truncates -> staged rows, in R1 order."""
    index, ordinal = changes, ordered.ordinal[changes]
    if truncates:
        index = np.concatenate((changes, [t.message for t in truncates]))
        ordinal = np.concatenate((ordinal, [t.ordinal for t in truncates]))
        in_order = np.argsort(index, kind="stable")
        index, ordinal = index[in_order], ordinal[in_order]
    kinds = block.kinds[index]
    tuples = _read_rows(block, relation, index, kinds)
    schema = relation.schema
    if schema is None or relation.staged is None:
        return None
    if schema.is_multiset and ((tuples.old_form != _OLD).any() or len(tuples.old_rows) < _old_count(kinds)):
        raise MalformedMessage(
            detail=f"a change of relation {relation.message.relation_oid} lacks the old row that FULL sends"
        )

    is_delete = kinds == _DELETE
    _fill_from_old(relation, tuples, is_delete)
    moved, moved_old = _moved(block, relation, tuples, is_delete)
    conversion = Conversion(block.data, salt, len(index))

    transaction = ordered.transaction[index]
    operations = pa.array(OPERATIONS, pa.string())
    arrays = [
        pa.array(np.full(len(index), generation, np.int32)),
        pa.array(ordered.commit_lsn[transaction]),
        pa.array(ordinal),
        pa.array(ordered.xid[transaction]),
        pa.array(ordered.committed_at[transaction]).view(pa.timestamp("us", tz="UTC")),
        operations.take(pa.array(_OPERATION_CODE[kinds])),
    ]
    everything = np.arange(len(index))
    for i, column in enumerate(schema.columns):
        arrays.append(conversion.column(column, tuples.new[i], everything, column.name, clamp=i not in relation.key))
    if schema.key:
        fields = [
            conversion.column(
                schema.columns[i],
                tuples.old[i].some(moved_old),
                moved,
                OLD_KEY_PREFIX + schema.columns[i].name,
                clamp=False,
            )
            if len(moved)
            else None
            for i in relation.key
        ]
        arrays.append(structs(relation.staged.field("_old_key").type, fields, moved, len(index)))
    arrays.append(_unchanged(schema, tuples.new, len(index)))
    if schema.is_multiset:
        updated = ~is_delete[tuples.old_rows]
        fields = [
            conversion.column(column, old, tuples.old_rows, column.name, renamed=(updated, OLD_PREFIX + column.name))
            for column, old in zip(schema.columns, tuples.old, strict=bool(tuples.old))
        ]
        arrays += [conversion.text(), structs(relation.staged.field("_old").type, fields, tuples.old_rows, len(index))]
    else:
        arrays.append(conversion.text())
    return TableBlock.of(schema, pa.RecordBatch.from_arrays(arrays, schema=relation.staged))


def _old_count(kinds: NDArray[np.uint8]) -> int:
    return int(np.count_nonzero((kinds == _UPDATE) | (kinds == _DELETE)))


def _fill_from_old(relation: _Relation, tuples: _Tuples, is_delete: Mask) -> None:
    """Give deletes their key, and updates those unchanged values that the old tuple holds."""
    if not len(tuples.old_rows):
        return
    deletes = is_delete[tuples.old_rows]
    full = tuples.old_form == _OLD
    for i, (new, old) in enumerate(zip(tuples.new, tuples.old, strict=True)):
        in_key = i in relation.key
        # In a 'K' tuple NULL means "not sent"; under FULL it is the value.
        is_sent = (old.kind == TEXT) & (full | in_key) | (old.kind == NULL) & full
        from_old = np.flatnonzero((new.kind[tuples.old_rows] == UNCHANGED) & is_sent | (deletes & in_key))
        if len(from_old):
            new.fill(tuples.old_rows[from_old], old, from_old)


def _moved(
    block: _Block, relation: _Relation, tuples: _Tuples, is_delete: Mask
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Updates whose key differs from the old one, byte for byte: their rows, and their places among the old rows.

    An old key is also sent where the key did not change: under FULL always, and when a key value lies in TOAST.
    """
    candidates = np.flatnonzero(~is_delete[tuples.old_rows])
    if not relation.key or not len(candidates):
        return np.empty(0, np.intp), np.empty(0, np.intp)
    rows = tuples.old_rows[candidates]
    differs = np.zeros(len(candidates), np.bool_)
    for i in relation.key:
        old, new = tuples.old[i].some(candidates), tuples.new[i].some(rows)
        differs |= old.kind != new.kind
        same = pc.equal(old.text(block.data), new.text(block.data))
        differs |= ~np.asarray(pc.fill_null(same, True).to_numpy(zero_copy_only=False), np.bool_)
    return rows[differs], candidates[differs]


def _unchanged(schema: TableSchema, values: list[Values], count: int) -> pa.Array:
    """`_unchanged`: per row the names of the columns whose value was not sent, NULL if there are none."""
    masks = [v.kind == UNCHANGED for v in values]
    columns = [i for i, m in enumerate(masks) if m.any()]
    if not columns:
        return pa.nulls(count, pa.list_(pa.string()))
    matrix = np.stack([masks[i] for i in columns], axis=1)
    counts = matrix.sum(axis=1)
    names = pa.array([schema.columns[i].name for i in columns], pa.string())
    flat = names.take(pa.array(np.nonzero(matrix)[1]))
    return pa.ListArray.from_arrays(list_offsets(counts), flat, mask=pa.array(counts == 0))
