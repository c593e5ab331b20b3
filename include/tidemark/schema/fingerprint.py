"""Defines the fingerprint of a table: what the catalogue holds of it, as evidence of changes the stream lacks (R11).

`source.catalogue.catalog` reads a fingerprint per table and run. Manifest and ledger store it as JSON.
`schema.evolution` compares two of them. A column's `xmin` is that of its pg_attribute row. Together with a new
relfilenode it distinguishes a rewriting ALTER, whose row is new, from VACUUM FULL, CLUSTER and TRUNCATE, which leave
the rows of pg_attribute alone. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import field
from msgspec.structs import replace

from tidemark.schema.table import Identity
from tidemark.strict_json import JsonRecord

# In a column's `spelling`: some label or column of its type was written after the column's own row in pg_attribute.
SPELLED_SINCE: Final = "altered since"

# How the parts of a spelling end that hold the transaction that last wrote a label.
WRITTEN_BY: Final = " by"

# Why a column is not captured, or not as the source has it.
LEFT_OUT: Final = "left out by the pipeline file"
GENERATED: Final = "generated, not published"
VIRTUAL: Final = "generated, virtual"
UNLISTED: Final = "not in the publication's column list"
HASHED: Final = "masked: sha256"
EMPTIED: Final = "masked: null"


class ColumnPrint(JsonRecord, frozen=True):
    """One captured column.

    - `missing`: a hash of its attmissingval, "masked" for a masked column.
    - `generated`: PostgreSQL's letter, or "".
    - `spelling`: what else the text of stored values depends on: labels of enums and columns of composite types, by
      OID.
    - `default`: PostgreSQL's text of its attmissingval; None if it is masked, too long, or differs between partitions.
    - `comment`: "" if there is none or comments were not read.
    - `dimensions`: the declared dimensions of an array; None if they were not read.
    """

    attnum: int
    name: str
    type_oid: int
    typmod: int
    not_null: bool
    generated: str
    missing: str | None
    xmin: int
    spelling: dict[str, str] = field(default_factory=dict)
    default: str | None = None
    comment: str = ""
    dimensions: int | None = None


class UncapturedColumn(JsonRecord, frozen=True):
    """A column whose values do not reach the lake unchanged, and the reason in a word or two."""

    name: str
    why: str


class PartitionPrint(JsonRecord, frozen=True):
    """One leaf of a partitioned table.

    - `born_empty`: every link up to the root was made by CREATE TABLE … PARTITION OF.
    - `links`: the transactions that made the links. A leaf that was detached and attached again has others.
    - `xmin`: the transaction that last wrote the leaf's row in pg_class, as every change of its storage does.
    - `toast`: the OID of its TOAST table, 0 if it has none.
    """

    oid: int
    relfilenode: int
    born_empty: bool
    links: str = ""
    xmin: int = 0
    toast: int = 0

    @property
    def is_as_created(self) -> bool:
        """Whether the leaf joined empty and still lies in its first file. The first file has the leaf's OID as its
        number; TRUNCATE and rewrites create another one. Relations without storage have no file."""
        return self.born_empty and self.relfilenode in (self.oid, 0)

    def may_be_created_by(self, xid: int, within: int) -> bool:
        """Whether the transaction or one of its subtransactions created the leaf. A subtransaction has one of the
        first `within` ids from the transaction's on."""
        made_by = int(self.links.split()[-1]) if self.links else 0
        return self.born_empty and (made_by - xid) & 0xFFFFFFFF < within


class Fingerprint(JsonRecord, frozen=True):
    """The result of one reading of the catalogue for one table.

    - `schema_xmin`: the transaction that last put the table into a schema, 0 if it was not read.
    - `membership`: the OIDs of the catalogue rows that put the table into the publication. A table that was removed and
      added again has others.
    - `published_columns`: the publication's columns, in order. `publication_xmin`: the transaction that last changed
      the publication's options.
    - `key`: the key of `TableSchema`. `key_made`: the OID of its constraint or index, 0 without a key. A key that was
      made again has another OID.
    - `last_attnum`: the highest column number, dropped columns included. `dropped`: the numbers of dropped columns with
      their last names, "" if these were never read (`carried`).
    - `gone`: partitions of an earlier reading that no longer exist, while changes of theirs may not be staged yet. Each
      has the transaction id below which every transaction had ended when the partition was first missing.
    - `comment`: the table's comment. `toast`: the OID of its TOAST table, 0 if it has none or it was not read.
    - `told`: the transaction since which the trusted event trigger is unchanged, 0 without one.
    - `uncaptured`: the columns that are not captured, each with the reason.
    """

    relation_oid: int
    relfilenode: int
    last_attnum: int
    identity: Identity
    key: tuple[str, ...]
    columns: tuple[ColumnPrint, ...]
    partitions: tuple[PartitionPrint, ...]
    membership: tuple[str, ...]
    row_filter: str | None
    published_columns: tuple[str, ...]
    publication_xmin: int = 0
    dropped: tuple[tuple[int, str], ...] = ()
    gone: tuple[tuple[int, int], ...] = ()
    comment: str = ""
    toast: int = 0
    key_made: int = 0
    schema_xmin: int = 0
    told: int = 0
    uncaptured: tuple[UncapturedColumn, ...] = ()

    @property
    def is_as_created(self) -> bool:
        """Whether every change of its rows is in the stream, as far as the catalogue shows.

        Its rows lie in the first file of the table or of each leaf. SET LOGGED after UNLOGGED, and every rewrite,
        create another file. No column's type changed the text of stored values, and no partition was attached with
        rows.
        """
        is_as_created = (
            all(leaf.is_as_created for leaf in self.partitions)
            if self.partitions
            else self.relfilenode in (self.relation_oid, 0)
        )
        return is_as_created and not any(SPELLED_SINCE in column.spelling for column in self.columns)

    @property
    def is_listed(self) -> bool:
        """Whether the publication lists the table by its own name alone."""
        return all(one.startswith("table ") for one in self.membership)

    def is_published_since(self, earlier: Fingerprint) -> bool:
        """Whether the publication published this table ever since an earlier fingerprint of some table. Both have
        to be published with all tables, or with the same schema, and the publication must not have been altered
        since."""
        wholes = {one for one in {*earlier.membership} & {*self.membership} if not one.startswith("table ")}
        return bool(wholes) and earlier.publication_xmin == self.publication_xmin

    def comments(self) -> dict[int, str]:
        """Comments by column number, the table's under 0. The table's comment lists the columns that are not
        captured. Empty comments are left out."""
        of_table = self.comment
        if self.uncaptured:
            lacking = f"Not captured: {listed_columns(self.uncaptured)}"
            of_table = f"{self.comment.rstrip('. ')}. {lacking}" if self.comment else lacking
        by_number = {0: of_table, **{column.attnum: column.comment for column in self.columns}}
        return {number: comment for number, comment in by_number.items() if comment}

    def carried(self, before: Fingerprint | None) -> Fingerprint:
        """This fingerprint with the names of dropped columns from the previous one, since the catalogue only keeps
        their numbers. A number is never used again."""
        if before is None or before.relation_oid != self.relation_oid:
            return self
        names = {**dict(before.dropped), **{column.attnum: column.name for column in before.columns}}
        dropped = tuple((attnum, name or names.get(attnum, "")) for attnum, name in self.dropped)
        return replace(self, dropped=dropped)

    def missing(self, before: Fingerprint | None, seen_below: int, *, staged: bool) -> Fingerprint:
        """This fingerprint with the partitions that are `gone` since the previous one, and since earlier ones
        unless everything before the previous one is `staged`. Transactions with ids below `seen_below` had ended
        when this one was read."""
        if before is None or before.relation_oid != self.relation_oid:
            return self
        gone = {} if staged else dict(before.gone)
        gone |= {leaf.oid: seen_below for leaf in before.partitions}
        there = {leaf.oid for leaf in self.partitions}
        return replace(self, gone=tuple(sorted((oid, below) for oid, below in gone.items() if oid not in there)))


def listed_columns(columns: Iterable[UncapturedColumn]) -> str:
    return ", ".join(f"{column.name} ({column.why})" for column in columns)
