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
    """`type` is PostgreSQL's own name with modifiers ("numeric(10,2)"), `target` the Delta
    type as DDL ("decimal(10,2)"). `attnum` is its number at the source, 0 if it is not known for certain. `missing`
    is PostgreSQL's text of what a row has that was written before the column was added: the constant default of its
    ADD COLUMN. It is None if there is none, or none that is certain and fits the target.
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
        """All but `attnum` and `missing`, which say nothing of what a file holds."""
        return self.name, self.type, self.type_oid, self.typmod, self.target, self.mask

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Column) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())


class TableSchema(JsonRecord, frozen=True, eq=False):
    """The captured columns in the source's order, left-out columns removed.

    `key` holds the columns of the replica identity (under FULL: of the primary key), in index order; empty means that
    the table has no key: a multiset under FULL, history only without any identity. `dropped` names the columns that
    only the target has still (`with_dropped`); a version of the source has none. `published` are the numbers of all
    columns that the stream sends, left-out ones included, in order; empty if they are not known for certain.
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
        """All but `published`, which says nothing of what a file holds."""
        same = (self.table, self.version, self.relation_oid, self.identity, self.key)
        return (*same, self.columns, self.dropped)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableSchema) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def with_dropped(self, columns: Iterable[Column]) -> TableSchema:
        """The target's shape: these columns, which the source has no more, stay behind those that it has. No file
        follows it, so its number is 0."""
        names = {column.name for column in self.columns}
        added = tuple(replace(column, missing=None) for column in columns if column.name not in names)
        dropped = tuple(column.name for column in added)
        return replace(self, version=0, columns=self.columns + added, dropped=dropped) if added else self

    def called(self, names: Mapping[int, str]) -> TableSchema:
        """With these names for the columns of these numbers. No file follows it, unless they have them."""
        new = {c.name: names.get(c.attnum, c.name) for c in self.columns}
        if all(old == name for old, name in new.items()):
            return self
        columns = tuple(replace(c, name=new[c.name]) for c in self.columns)
        return replace(self, version=0, key=tuple(new[name] for name in self.key), columns=columns)

    @property
    def is_multiset(self) -> bool:
        """No key, but whole old rows: `current` holds as many copies of a row as the source does, and staged changes
        have `_old`. Without a column there is nothing to have."""
        return not self.key and self.identity == "full" and bool(self.columns)

    @property
    def has_current(self) -> bool:
        """Without any identity no row can be told from another, and the source can only insert: history only."""
        return bool(self.key) or self.is_multiset

    def matches_by_number(self, other: TableSchema) -> bool:
        """Whether the columns of both can be matched by their numbers, whatever their names are."""
        return bool(self.published and other.published) and self.relation_oid == other.relation_oid

    def column_in(self, other: TableSchema, column: Column) -> Column | None:
        """What a column of this shape is in another one, None where that has it not."""
        if self.matches_by_number(other) and column.attnum:
            return next((c for c in other.columns if c.attnum == column.attnum), None)
        return next((c for c in other.columns if c.name == column.name), None)

    def other_names(self, other: TableSchema) -> dict[str, str]:
        """Names of the other shape -> of this one, of the columns that are called otherwise."""
        pairs = [(self.column_in(other, column), column) for column in self.columns]
        return {was.name: column.name for was, column in pairs if was is not None and was.name != column.name}

    def same_shape(self, other: TableSchema) -> bool:
        """Whether files of both follow one version: all but the version number and the relation's OID is equal. Names
        that were given to other columns make another shape."""
        if self.matches_by_number(other) and self.published != other.published:
            return False
        return (self.table, self.identity, self.key, self.columns) == (
            other.table,
            other.identity,
            other.key,
            other.columns,
        )

    def at_least_as_wide_as(self, targets: Mapping[str, str]) -> TableSchema:
        """With the types of a target, by column, where that has been widened already. No file follows it, unless it is
        the same."""
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
