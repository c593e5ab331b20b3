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
    """One captured column. `missing` is a hash of its attmissingval ("masked" for a masked column),
    `generated` pg's letter or "". `spelling` is what the text of stored values depends on besides them: the labels of
    an enum and the columns of a composite type, by their OIDs. `default` is PostgreSQL's text of its attmissingval,
    None if it is masked, too long, or not the same in all partitions. `comment` is for people, "" if there is none or
    the look was not for it. `dimensions` are those that an array was declared with,
    None where only the catalogue would tell."""

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
    """A column whose values do not reach the lake as the source has them, and why, in a word or two."""

    name: str
    why: str


class PartitionPrint(JsonRecord, frozen=True):
    """One leaf of a partitioned table; `born_empty`: every link up to the root was made
    by CREATE TABLE … PARTITION OF. `links` are the transactions that made the links: those of a leaf that
    left and came back are others. `xmin` is the transaction that last wrote the leaf's row in pg_class, as one that
    gave it new storage does. `toast` is the OID of its TOAST table, 0 if it has none."""

    oid: int
    relfilenode: int
    born_empty: bool
    links: str = ""
    xmin: int = 0
    toast: int = 0

    @property
    def is_as_created(self) -> bool:
        """Whether it was empty when it joined, and lies in the file that it was created with, which has its own number;
        one that TRUNCATE or a rewrite gives it lies elsewhere. Kinds without a file have none."""
        return self.born_empty and self.relfilenode in (self.oid, 0)

    def may_be_created_by(self, xid: int, within: int) -> bool:
        """Whether that transaction, or a part of it below a savepoint, created the leaf. A part has a higher id: one of
        the first `within` ids from the transaction's on."""
        made_by = int(self.links.split()[-1]) if self.links else 0
        return self.born_empty and (made_by - xid) & 0xFFFFFFFF < within


class Fingerprint(JsonRecord, frozen=True):
    """What one reading of the catalogue found of a table.

    - `called` is the table's name; `called_xmin` the transaction that last changed its name, schema or owner; "" and 0
      if they were not read.
    - `membership` are the OIDs of the catalogue rows that put the table into the publication. A table that was removed
      and added again has others.
    - `published_columns` are those of the publication, in order; `publication_xmin` the transaction that last changed
      its options.
    - `key` is the key of `TableSchema`; `key_made` the OID of its constraint or index. A key that was made again has
      another OID, and a table without key has 0.
    - `last_attnum` is the highest number of any column, dropped ones included; `dropped` maps the numbers of dropped
      columns to their last names, "" if they were never read (`carried`).
    - `gone` are partitions of an earlier reading that no longer exist, while changes of theirs may be unstaged: their
      OIDs, each with the transaction id below which every transaction had ended when it was first missed.
    - `comment` is the table's; `toast` the OID of its TOAST table, 0 if it has none or it was not read.
    - `told` is the transaction since which the trusted event trigger is unchanged, 0 without one.
    - `uncaptured` are the columns that are not captured, each with the reason. Like comments they are only shown.
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
    called: str = ""
    called_xmin: int = 0
    told: int = 0
    uncaptured: tuple[UncapturedColumn, ...] = ()

    @property
    def is_as_created(self) -> bool:
        """Whether nothing became of its rows that is in no stream: its files are those that it was created with, which
        have its own number; what an UNLOGGED table had before SET LOGGED, and what an ALTER writes anew, lies in
        others. A partitioned table has none itself. Nor did a type of its columns begin to spell them otherwise, nor
        came a partition with rows."""
        is_as_created = (
            all(leaf.is_as_created for leaf in self.partitions)
            if self.partitions
            else self.relfilenode in (self.relation_oid, 0)
        )
        return is_as_created and not any(SPELLED_SINCE in column.spelling for column in self.columns)

    @property
    def is_listed(self) -> bool:
        """Whether nothing but its own name puts it into the publication."""
        return all(one.startswith("table ") for one in self.membership)

    def is_published_since(self, look: Fingerprint) -> bool:
        """Whether a publication of all tables, or of all of a schema, that had the table of an earlier look has had
        this one ever since, without an alteration."""
        wholes = {one for one in {*look.membership} & {*self.membership} if not one.startswith("table ")}
        return bool(wholes) and look.publication_xmin == self.publication_xmin

    def comments(self) -> dict[int, str]:
        """The comments by the numbers of the columns, the table's under 0, which also lists the columns that are not
        captured; without those that are empty."""
        of_table = self.comment
        if self.uncaptured:
            lacking = f"Not captured: {listed_columns(self.uncaptured)}"
            of_table = f"{self.comment.rstrip('. ')}. {lacking}" if self.comment else lacking
        by_number = {0: of_table, **{column.attnum: column.comment for column in self.columns}}
        return {number: comment for number, comment in by_number.items() if comment}

    def carried(self, before: Fingerprint | None) -> Fingerprint:
        """With the names of dropped columns that the look before this one knew: the catalogue keeps numbers alone. A
        number is never given out again, so what is gone under it was that column."""
        if before is None or before.relation_oid != self.relation_oid:
            return self
        names = {**dict(before.dropped), **{column.attnum: column.name for column in before.columns}}
        dropped = tuple((attnum, name or names.get(attnum, "")) for attnum, name in self.dropped)
        return replace(self, dropped=dropped)

    def missing(self, before: Fingerprint | None, seen_below: int, *, staged: bool) -> Fingerprint:
        """With the partitions that are `gone`: since the look before this one, and since those before that, unless all
        that it saw is `staged`. Transactions below `seen_below` had ended when this one was taken."""
        if before is None or before.relation_oid != self.relation_oid:
            return self
        gone = {} if staged else dict(before.gone)
        gone |= {leaf.oid: seen_below for leaf in before.partitions}
        there = {leaf.oid for leaf in self.partitions}
        return replace(self, gone=tuple(sorted((oid, below) for oid, below in gone.items() if oid not in there)))


def listed_columns(columns: Iterable[UncapturedColumn]) -> str:
    return ", ".join(f"{column.name} ({column.why})" for column in columns)
