"""Decodes all changes of one relation in a buffer to their staged rows, by column.

The start and length of column k in all rows give the starts of column k+1. `conversion` converts the values of a column
to one Arrow array. There is no loop over rows.

Only the key's columns of an old tuple are used, since in a 'K' tuple "n" means "not part of the identity". Under FULL,
the old tuple also fills unchanged values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.errors import MalformedMessage, SchemaDisagrees
from tidemark.formats.columns import OPERATIONS, staged_schema
from tidemark.names import OLD_KEY_PREFIX, OLD_PREFIX
from tidemark.pgoutput.blocks import TableBlock
from tidemark.pgoutput.buffer import DELETE, INSERT, TRUNCATE, UPDATE, Buffer, BufferedTruncate, OrderedMessages
from tidemark.pgoutput.conversion import (
    NULL,
    TEXT,
    UNCHANGED,
    Conversion,
    Values,
    list_offsets,
    require_salt,
    structs,
    words,
)
from tidemark.pgoutput.messages import RelationMessage
from tidemark.schema.table import TableSchema
from tidemark.schema.values import Mask, Positions

_NEW, _KEY, _OLD = b"NKO"

_OPERATION_CODE: Final = np.zeros(256, np.int8)
_OPERATION_CODE[[INSERT, UPDATE, DELETE, TRUNCATE]] = range(4)


@dataclass(frozen=True, slots=True)
class StreamRelation:
    """A relation of the stream, with the schema of its captured table; None if it is not captured.

    `place[i]` is the index of the captured column at position i of a tuple, -1 for a column that is not captured. `key`
    are the indexes of the captured key columns.
    """

    message: RelationMessage
    schema: TableSchema | None
    place: tuple[int, ...]
    key: tuple[int, ...]
    staged: pa.Schema | None

    @classmethod
    def of(cls, message: RelationMessage, schema: TableSchema | None, salt: bytes | None) -> StreamRelation:
        """Match the message with the captured table's schema. Raises SchemaDisagrees, or MaskWithoutSalt."""
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


def _read_tuple(
    block: Buffer, relation: StreamRelation, at: Positions, ends: Positions
) -> tuple[list[Values], Positions]:
    """Read tuples of one relation that begin at `at`. Returns the captured columns, and the end of each tuple."""
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
        # Eight bytes include the kind and, for text, the length. If they reach beyond the message's end, the value's
        # end is beyond it too, and the check below raises.
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
    """The tuples of n changes. `new` has each captured column's values for all n rows. `old` has them for
    `old_rows` only.

    `old_form` is K or O per old row.
    """

    new: list[Values]
    old: list[Values]
    old_rows: NDArray[np.intp]
    old_form: NDArray[np.uint8]


def _read_rows(block: Buffer, relation: StreamRelation, index: NDArray[np.intp], kinds: NDArray[np.uint8]) -> _Tuples:
    """Read both tuples of every change and consume each message exactly. Rows without a new tuple are NULL in all
    columns."""
    oid = relation.message.relation_oid
    starts, ends = block.starts[index], block.ends[index]
    at = starts + 5
    form = block.data[at]
    is_insert, is_update, is_delete = kinds == INSERT, kinds == UPDATE, kinds == DELETE
    has_old = ((form == _KEY) | (form == _OLD)) & (is_update | is_delete)
    has_new = is_insert | is_update
    if not (has_old | ((form == _NEW) & has_new) | (kinds == TRUNCATE)).all():
        raise MalformedMessage(detail=f"a change of relation {oid} has no tuple where one must be")
    old_rows = np.flatnonzero(has_old)
    old: list[Values] = []
    if len(old_rows):
        old, after = _read_tuple(block, relation, at[old_rows] + 1, ends[old_rows])
        at[old_rows] = after
        # PostgreSQL logs old rows with their TOAST values, so a server never sends this.
        if any((values.kind == UNCHANGED).any() for values in old):
            raise MalformedMessage(detail=f"an old row of relation {oid} has an unchanged value")
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


def decode_rows(
    block: Buffer,
    ordered: OrderedMessages,
    relation: StreamRelation,
    changes: NDArray[np.intp],
    truncates: list[BufferedTruncate],
    generation: int,
    salt: bytes | None,
    *,
    may_lack_identity: bool = False,
) -> TableBlock | None:
    """Decode one relation's inserts, updates and deletes (by message index), and its truncates, to staged rows in
    R1 order; None if there are none, or if the relation is not captured.

    `may_lack_identity`: a partition's replica identity may have other columns than its root's. Changes that do not
    identify their row are then left out, and the caller's `has_other_identity` marks the table.
    """
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
    if may_lack_identity:
        tuples, kept = _without_unidentified(relation, schema, tuples, kinds)
        if not len(kept):
            return None
        index, ordinal, kinds = index[kept], ordinal[kept], kinds[kept]
    if schema.is_multiset and ((tuples.old_form != _OLD).any() or len(tuples.old_rows) < _old_count(kinds)):
        raise MalformedMessage(
            detail=f"a change of relation {relation.message.relation_oid} lacks the old row that FULL sends"
        )

    is_delete = kinds == DELETE
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
                tuples.old[i].take(moved_old),
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


def _without_unidentified(
    relation: StreamRelation, schema: TableSchema, tuples: _Tuples, kinds: NDArray[np.uint8]
) -> tuple[_Tuples, NDArray[np.intp]]:
    """The changes without those that do not identify their row, and the kept row numbers.

    A change is kept if its old row is identified by the table's key, or without a key by the whole old row. Other
    updates are kept too if the table has a key, because they contain the new row of their new key. Other deletes
    contain nothing that can be applied.
    """
    is_identified = np.ones(len(kinds), np.bool_)
    if schema.is_multiset:
        is_identified = (kinds != UPDATE) & (kinds != DELETE)
        is_identified[tuples.old_rows[tuples.old_form == _OLD]] = True
        is_kept = is_identified
    else:
        for i in relation.key if len(tuples.old_rows) else ():
            is_identified[tuples.old_rows[tuples.old[i].kind == NULL]] = False
        is_kept = is_identified | (kinds == UPDATE)
    if is_identified.all():
        return tuples, np.arange(len(kinds))
    kept, old_kept = np.flatnonzero(is_kept), np.flatnonzero(is_identified[tuples.old_rows])
    place = np.cumsum(is_kept) - 1
    return (
        _Tuples(
            [values.take(kept) for values in tuples.new],
            [values.take(old_kept) for values in tuples.old],
            place[tuples.old_rows[old_kept]],
            tuples.old_form[old_kept],
        ),
        kept,
    )


def _old_count(kinds: NDArray[np.uint8]) -> int:
    """The number of changes that have an old row under FULL."""
    return int(np.count_nonzero((kinds == UPDATE) | (kinds == DELETE)))


def _fill_from_old(relation: StreamRelation, tuples: _Tuples, is_delete: Mask) -> None:
    """Fill the key of deletes, and unchanged values of updates, from the old tuple."""
    if not len(tuples.old_rows):
        return
    deletes = is_delete[tuples.old_rows]
    full = tuples.old_form == _OLD
    for i, (new, old) in enumerate(zip(tuples.new, tuples.old, strict=True)):
        in_key = i in relation.key
        # In a 'K' tuple NULL means "not sent"; under FULL it is the value.
        is_sent = full | (old.kind == TEXT) & in_key
        from_old = np.flatnonzero((new.kind[tuples.old_rows] == UNCHANGED) & is_sent | (deletes & in_key))
        if len(from_old):
            new.fill(tuples.old_rows[from_old], old, from_old)


def _moved(
    block: Buffer, relation: StreamRelation, tuples: _Tuples, is_delete: Mask
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The updates whose key differs from the old key, byte for byte: their row numbers, and their indexes in
    `old_rows`.

    An old key is also sent if the key did not change: always under FULL, and if a key value is in TOAST.
    """
    candidates = np.flatnonzero(~is_delete[tuples.old_rows])
    if not relation.key or not len(candidates):
        return np.empty(0, np.intp), np.empty(0, np.intp)
    rows = tuples.old_rows[candidates]
    differs = np.zeros(len(candidates), np.bool_)
    for i in relation.key:
        old, new = tuples.old[i].take(candidates), tuples.new[i].take(rows)
        differs |= old.kind != new.kind
        same = pc.equal(old.text(block.data), new.text(block.data))
        differs |= ~np.asarray(pc.fill_null(same, True).to_numpy(zero_copy_only=False), np.bool_)
    return rows[differs], candidates[differs]


def _unchanged(schema: TableSchema, values: list[Values], count: int) -> pa.Array:
    """The `_unchanged` column: per row the names of the columns whose value was not sent, NULL in rows without one."""
    masks = [v.kind == UNCHANGED for v in values]
    columns = [i for i, m in enumerate(masks) if m.any()]
    if not columns:
        return pa.nulls(count, pa.list_(pa.string()))
    matrix = np.stack([masks[i] for i in columns], axis=1)
    counts = matrix.sum(axis=1)
    names = pa.array([schema.columns[i].name for i in columns], pa.string())
    flat = names.take(pa.array(np.nonzero(matrix)[1]))
    return pa.ListArray.from_arrays(list_offsets(counts), flat, mask=pa.array(counts == 0))
