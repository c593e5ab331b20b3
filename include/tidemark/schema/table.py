"""Describes one version of a captured table: columns with their PostgreSQL and Delta types, key and identity.

A version begins wherever the stream's RELATION message differs in a way that matters to files or target. The ledger
numbers versions per table; staged files carry the version that they follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec.structs import replace

from tidemark.names import TableName
from tidemark.schema.delta_types import widens
from tidemark.strict_json import JsonRecord

Identity = Literal["default", "full", "index", "nothing"]


class Column(JsonRecord, frozen=True, eq=False):
    """`type` is PostgreSQL's own name with modifiers ("numeric(10,2)"), `target` the Delta type as DDL
    ("decimal(10,2)"). `attnum` is its number at the source, 0 if it is not certain.

    `missing` is the constant default of its ADD COLUMN, as PostgreSQL's text: the value of rows that were written
    before. It is None if there is none, or if it is not certain, or does not fit the target.
    """

    name: str
    type: str
    type_oid: int
    typmod: int
    target: str
    mask: Literal["null", "sha256"] | None = None
    attnum: int = 0
    missing: str | None = None

    def _compared(self) -> tuple[object, ...]:
        """All fields except `attnum` and `missing`, which do not concern the content of a file."""
        return self.name, self.type, self.type_oid, self.typmod, self.target, self.mask

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Column) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())


class TableSchema(JsonRecord, frozen=True, eq=False):
    """The captured columns in the source's order, without left-out columns.

    - `key`: the columns of the replica identity (under FULL: of the primary key), in index order. Empty if the table
      has no key: a multiset under FULL, history alone without any identity.
    - `dropped`: columns that only the target still has (`with_dropped`). A version of the source has none.
    - `published`: the numbers of all columns that the stream sends, left-out ones included, in order. Empty if they are
      not certain.
    """

    table: TableName
    version: int
    relation_oid: int
    identity: Identity
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    dropped: tuple[str, ...] = ()
    published: tuple[int, ...] = ()

    def _compared(self) -> tuple[object, ...]:
        """All fields except `published`, which does not concern the content of a file."""
        same = (self.table, self.version, self.relation_oid, self.identity, self.key)
        return (*same, self.columns, self.dropped)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableSchema) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def with_dropped(self, columns: Iterable[Column]) -> TableSchema:
        """The target's shape: dropped columns stand behind the live ones. No file follows it, so its version is 0."""
        names = {column.name for column in self.columns}
        added = tuple(replace(column, missing=None) for column in columns if column.name not in names)
        dropped = tuple(column.name for column in added)
        return replace(self, version=0, columns=self.columns + added, dropped=dropped) if added else self

    def called(self, names: Mapping[int, str]) -> TableSchema:
        """The schema with these column names, by number. No file follows a renamed schema, so its version is 0."""
        new = {c.name: names.get(c.attnum, c.name) for c in self.columns}
        if all(old == name for old, name in new.items()):
            return self
        columns = tuple(replace(c, name=new[c.name]) for c in self.columns)
        return replace(self, version=0, key=tuple(new[name] for name in self.key), columns=columns)

    @property
    def is_multiset(self) -> bool:
        """Whether the table has no key and the stream sends whole old rows. `current` then holds as many copies of a
        row as the source, and staged changes have `_old`. A table without columns is no multiset."""
        return not self.key and self.identity == "full" and bool(self.columns)

    @property
    def has_current(self) -> bool:
        """Whether the table has a `current`. Without any identity the source can only insert, and rows cannot be told
        apart: history alone."""
        return bool(self.key) or self.is_multiset

    def matches_by_number(self, other: TableSchema) -> bool:
        """Whether the columns of both can be matched by number."""
        return bool(self.published and other.published) and self.relation_oid == other.relation_oid

    def column_in(self, other: TableSchema, column: Column) -> Column | None:
        """The column of another version that is this column; None if that version does not have it."""
        if self.matches_by_number(other) and column.attnum:
            return next((c for c in other.columns if c.attnum == column.attnum), None)
        return next((c for c in other.columns if c.name == column.name), None)

    def other_names(self, other: TableSchema) -> dict[str, str]:
        """The columns with different names in the two versions: the other version's name -> this one's."""
        pairs = [(self.column_in(other, column), column) for column in self.columns]
        return {was.name: column.name for was, column in pairs if was is not None and was.name != column.name}

    def same_shape(self, other: TableSchema) -> bool:
        """Whether files of both can share one version: everything is equal except the version number and the relation's
        OID. Names that moved to other columns make another shape."""
        if self.matches_by_number(other) and self.published != other.published:
            return False
        return (self.table, self.identity, self.key, self.columns) == (
            other.table,
            other.identity,
            other.key,
            other.columns,
        )

    def at_least_as_wide_as(self, targets: Mapping[str, str]) -> TableSchema:
        """The schema with the target's types where the target was widened already. A changed schema has version 0,
        since no file follows it."""
        columns = tuple(
            replace(c, target=targets[c.name]) if widens(c.target, targets.get(c.name, "")) else c for c in self.columns
        )
        return self if columns == self.columns else replace(self, version=0, columns=columns)

    def is_read_as(self, target: TableSchema) -> bool:
        """Whether a file of this version can be read as the target's shape without changes: its columns have the
        target's types, and the target has no default for a column that the file lacks."""
        for column in target.columns:
            own = target.column_in(self, column)
            if own is None and (column.missing is not None or column.name in {c.name for c in self.columns}):
                return False
            if own is not None and (own.name, own.target) != (column.name, column.target):
                return False
        return True
