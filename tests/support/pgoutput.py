"""pgoutput messages, built by hand, and read again one value at a time: the slow, obvious twin of the vectorised
decoder."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.names import TableName
from tidemark.pgoutput.messages import RelationMessage
from tidemark.schema.table import Column, Identity, TableSchema


class Unchanged:
    """What a tuple holds in place of a TOAST value that was not sent."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = Unchanged()

Value = str | bytes | None | Unchanged
Tuple = Sequence[Value]

TEXT = 25


# --- building --------------------------------------------------------------------------------------------------------


def begin(commit_lsn: int, *, time: int = 0, xid: int = 700) -> bytes:
    return struct.pack(">cQqI", b"B", commit_lsn, time, xid)


def commit(commit_lsn: int, *, end_lsn: int | None = None, time: int = 0) -> bytes:
    return struct.pack(">cBQQq", b"C", 0, commit_lsn, commit_lsn + 8 if end_lsn is None else end_lsn, time)


def relation(
    oid: int,
    columns: Sequence[str],
    *,
    key: Sequence[str] = (),
    name: str = "t",
    identity: str = "d",
    type_oids: Sequence[int] | None = None,
) -> bytes:
    """Under identity "f" every column is flagged, as PostgreSQL does."""
    message = struct.pack(">cI", b"R", oid) + b"public\0" + name.encode() + b"\0" + identity.encode()
    message += struct.pack(">H", len(columns))
    for column, type_oid in zip(columns, type_oids or [TEXT] * len(columns), strict=True):
        message += struct.pack(">B", identity == "f" or column in key) + column.encode() + b"\0"
        message += struct.pack(">Ii", type_oid, -1)
    return message


def values(row: Tuple) -> bytes:
    out = struct.pack(">H", len(row))
    for value in row:
        if value is None:
            out += b"n"
        elif isinstance(value, Unchanged):
            out += b"u"
        else:
            data = value.encode() if isinstance(value, str) else value
            out += struct.pack(">cI", b"t", len(data)) + data
    return out


def insert(oid: int, row: Tuple) -> bytes:
    return struct.pack(">cI", b"I", oid) + b"N" + values(row)


def update(oid: int, row: Tuple, *, key: Tuple | None = None, old: Tuple | None = None) -> bytes:
    before = b"" if key is None else b"K" + values(key)
    before += b"" if old is None else b"O" + values(old)
    return struct.pack(">cI", b"U", oid) + before + b"N" + values(row)


def delete(oid: int, *, key: Tuple | None = None, old: Tuple | None = None) -> bytes:
    before = b"O" + values(old) if old is not None else b"K" + values(key or ())
    return struct.pack(">cI", b"D", oid) + before


def truncate(*oids: int, options: int = 0) -> bytes:
    return struct.pack(f">cIB{len(oids)}I", b"T", len(oids), options, *oids)


def logical(prefix: str, content: bytes, *, lsn: int, transactional: bool = True) -> bytes:
    body = struct.pack(">cBQ", b"M", transactional, lsn) + prefix.encode() + b"\0"
    return body + struct.pack(">I", len(content)) + content


def origin(lsn: int) -> bytes:
    return struct.pack(">cQ", b"O", lsn) + b"upstream\0"


def type_of(oid: int) -> bytes:
    return struct.pack(">cI", b"Y", oid) + b"public\0mood\0"


# --- definitions -----------------------------------------------------------------------------------------------------


def text_schema(
    message: RelationMessage, *, version: int = 1, key: Sequence[str] | None = None, leave_out: Sequence[str] = ()
) -> TableSchema:
    """Every column as text. The key is what the message flags, under FULL none unless given."""
    if key is None:
        key = () if message.identity == "full" else [c.name for c in message.columns if c.in_identity]
    return TableSchema(
        table=message.table,
        version=version,
        relation_oid=message.relation_oid,
        identity=message.identity,
        key=tuple(key),
        columns=tuple(
            Column(c.name, "text", c.type_oid, c.typmod, "string") for c in message.columns if c.name not in leave_out
        ),
    )


def schema(
    targets: dict[str, str],
    *,
    oid: int = 1,
    key: Sequence[str] = (),
    identity: Identity = "default",
    name: str = "t",
    masks: dict[str, Any] | None = None,
) -> TableSchema:
    """A definition for `relation(oid, list(targets), key=key)`."""
    columns = [Column(c, "text", TEXT, -1, target, (masks or {}).get(c)) for c, target in targets.items()]
    return TableSchema(TableName("public", name), 1, oid, identity, tuple(key), tuple(columns))


# --- reading, one value at a time ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """`relation` is the RELATION message in force, `form` the letter in front of the first tuple."""

    commit_lsn: int
    ordinal: int
    xid: int
    op: str
    relation: bytes
    names: tuple[str, ...]
    form: str
    old: list[Value]
    new: list[Value]


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, form: str) -> Any:
        size = struct.calcsize(">" + form)
        piece, self.data = self.data[:size], self.data[size:]
        return struct.unpack(">" + form, piece)[0]

    def string(self) -> str:
        text, _, self.data = self.data.partition(b"\0")
        return text.decode()

    def tuple(self) -> list[Value]:
        row: list[Value] = []
        for _ in range(self.take("H")):
            kind = self.take("c")
            row.append(
                None if kind == b"n" else UNCHANGED if kind == b"u" else self.take(f"{self.take('I')}s").decode()
            )
        return row


def read(messages: Iterable[bytes]) -> Iterator[Change]:
    """Every change of a well-formed stream, in order."""
    relations: dict[int, tuple[bytes, tuple[str, ...]]] = {}
    commit_lsn = ordinal = xid = 0
    for message in messages:
        data = _Bytes(message)
        kind = data.take("c")
        if kind == b"B":
            commit_lsn, ordinal, _, xid = data.take("Q"), 0, data.take("q"), data.take("I")
        elif kind == b"R":
            oid, _, _, _ = data.take("I"), data.string(), data.string(), data.take("c")
            columns = []
            for _ in range(data.take("H")):
                data.take("B")
                columns.append(data.string())
                data.take("Q")
            relations[oid] = (message, tuple(columns))
        elif kind == b"T":
            count, _ = data.take("I"), data.take("B")
            for _ in range(count):
                yield Change(commit_lsn, ordinal, xid, "truncate", *relations[data.take("I")], "", [], [])
                ordinal += 1
        elif kind in (b"I", b"U", b"D"):
            oid, form, old, new = data.take("I"), data.take("c"), [], []
            if form != b"N":
                old = data.tuple()
                if kind == b"U":
                    data.take("c")
            if kind != b"D":
                new = data.tuple()
            op = {b"I": "insert", b"U": "update", b"D": "delete"}[kind]
            yield Change(commit_lsn, ordinal, xid, op, *relations[oid], form.decode(), old, new)
            ordinal += 1


def written(change: Change) -> bytes:
    """The change's message, if the server had written it: nothing more, and as many values as there are columns."""
    oid = int.from_bytes(change.relation[1:5])
    assert all(len(row) in (0, len(change.names)) for row in (change.old, change.new))
    old = {"key": change.old if change.form == "K" else None, "old": change.old if change.form == "O" else None}
    if change.op == "insert":
        return insert(oid, change.new)
    return update(oid, change.new, **old) if change.op == "update" else delete(oid, **old)


def staged(change: Change, table: TableSchema) -> dict[str, Any]:
    """The staged row that the decoder must make of a change where every column is text."""
    old = dict(zip(change.names, change.old, strict=False))
    new = dict(zip(change.names, change.new, strict=False))
    captured = [c.name for c in table.columns]
    sent_names = captured if change.form == "O" else table.key
    for name in captured:
        sent = name in old and (change.form == "O" or old[name] is not None)
        if new.get(name) is UNCHANGED and name in sent_names and sent:
            new[name] = old[name]
    row: dict[str, Any] = {"_commit_lsn": change.commit_lsn, "_ordinal": change.ordinal, "_xid": change.xid}
    row["_op"] = change.op
    for name in captured:
        value = old.get(name) if change.op == "delete" and name in table.key else new.get(name)
        row[name] = None if value is UNCHANGED else value
    if table.key:
        moved = change.op == "update" and old and any(old[k] != new[k] for k in table.key)
        row["_old_key"] = {k: old[k] for k in table.key} if moved else None
    row["_unchanged"] = [name for name in captured if new.get(name) is UNCHANGED] or None
    row["_text"] = None
    if table.is_multiset:
        row["_old"] = {name: old.get(name) for name in captured} if old else None
    return row
