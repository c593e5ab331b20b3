"""Compares two schemas, or two fingerprints, of one table, and decides if the target can follow each change (R8, R11).

    FOLLOWED         no older row changes: the merge goes on, and adds a column if one was added
    FILLED           older rows hold a new value that the merge can compute: it goes on, and writes it to them
    NEEDS_BACKFILL   older rows hold a new value that no change of the stream has: the merge goes on, the table is
                     marked
    RESHAPE          the target's table cannot take the new shape, but a new table can: it is built beside the old one,
                     or the table is parked if the pipeline file does not have it followed
    PARK             the change is ambiguous, or no table can take it: nothing newer is applied until a person acts

The two comparisons have different evidence. The stream's shape (`compare_schemas`) is exact for the changes that follow
it, but has neither defaults nor rewrites. The catalogue (`compare_fingerprints`) has those, but as they are now, and
the stream may be older. So it never parks. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from msgspec.structs import replace

from tidemark.schema.delta_types import widens
from tidemark.schema.fingerprint import SPELLED_SINCE, ColumnPrint, Fingerprint, PartitionPrint
from tidemark.schema.postgres_types import are_alike
from tidemark.schema.table import Column, TableSchema
from tidemark.wording import counted, plural


class Verdict(StrEnum):
    """What a difference means for the target, from the mildest to the hardest."""

    FOLLOWED = "followed"
    FILLED = "filled"
    NEEDS_BACKFILL = "needs backfill"
    RESHAPE = "reshape"
    PARK = "park"


# Those with which nothing newer goes into the table as it is.
STOPS: Final = frozenset({Verdict.RESHAPE, Verdict.PARK})


@dataclass(frozen=True, slots=True)
class Difference:
    """`reason` is half a sentence with names, never values: "column \"a\" was renamed to \"b\"". `columns` are the
    numbers of the columns whose older values differ; empty if any column's may."""

    verdict: Verdict
    reason: str
    columns: tuple[int, ...] = ()


def _lacking(reason: str, *columns: int) -> Difference:
    return Difference(Verdict.NEEDS_BACKFILL, reason, columns)


def _followed(reason: str) -> Difference:
    return Difference(Verdict.FOLLOWED, reason)


def columns_of(differences: Iterable[Difference]) -> tuple[int, ...]:
    """The numbers of the columns whose older values differ; empty if any column's may."""
    marking = [difference.columns for difference in differences if difference.verdict is Verdict.NEEDS_BACKFILL]
    return tuple(sorted({number for columns in marking for number in columns})) if all(marking) else ()


def reasons(differences: Iterable[Difference], *verdicts: Verdict) -> str:
    """The reasons of all differences with these verdicts, joined; "" if there are none."""
    return "; ".join(d.reason for d in differences if d.verdict in verdicts)


def reshaped(differences: Collection[Difference]) -> str:
    """The reason why a new table has to begin beside this one; "" if it need not, or if a new table would not help."""
    if any(difference.verdict is Verdict.PARK for difference in differences):
        return ""
    return reasons(differences, Verdict.RESHAPE)


# --- the stream's shape -----------------------------------------------------------------------------------------------


def compare_schemas(old: TableSchema, new: TableSchema, dropped: Collection[str] = ()) -> list[Difference]:
    """The differences between two versions in the stream.

    Whether older rows hold a value in an added column is not decided here. If a version lacks column numbers, a column
    that is missing may have been dropped or renamed. `dropped` are the names of columns that were dropped according to
    the catalogue: they stay in the target.
    """
    return [*_compare_schemas(old, new, dropped)]


def _compare_schemas(old: TableSchema, new: TableSchema, dropped: Collection[str]) -> Iterator[Difference]:
    pairs = [(new.column_in(old, column), column) for column in new.columns]
    yield from (_followed(f'column "{column.name}" was added') for was, column in pairs if was is None)
    for column in old.columns:
        if old.column_in(new, column) is None and column.name in dropped:
            yield _followed(f'column "{column.name}" was dropped')
        elif old.column_in(new, column) is None:
            yield Difference(Verdict.RESHAPE, f'column "{column.name}" was dropped, renamed or left out')
    for was, column in pairs:
        if was is not None and was.name != column.name:
            yield _followed(f'column "{was.name}" was renamed to "{column.name}"')
        if was is not None:
            yield from _compare_columns(was, column)
    if not new.matches_by_number(old) and _in_another_order(old, new):
        yield _lacking("its columns changed places: some swapped their names, or were dropped and added again")
    keys_alike = tuple(new.other_names(old).get(name, name) for name in old.key) == new.key
    key_columns = [column for column in old.columns if column.name in old.key]
    if keys_alike and any(old.column_in(new, column) is None for column in key_columns):
        reason = f"the key's column {_names(old.key)} was dropped, and another one of its name is the key"
        yield Difference(Verdict.RESHAPE, reason)
    elif not keys_alike:
        yield Difference(Verdict.RESHAPE, f"the key changed from {_names(old.key)} to {_names(new.key)}")
    elif old.identity != new.identity:
        yield _identity(old, new)


def _in_another_order(old: TableSchema, new: TableSchema) -> bool:
    """Whether columns of the same names are in another order. No ALTER TABLE reorders columns, so they are other
    columns."""
    names = {c.name for c in old.columns} & {c.name for c in new.columns}
    return [c.name for c in old.columns if c.name in names] != [c.name for c in new.columns if c.name in names]


def name_taken_by_key(older: Sequence[TableSchema], new: TableSchema) -> list[Difference]:
    """Differences for columns of the key whose name the target has for a dropped column. Other columns get another
    name there (`schema.renamed_columns`), but a column of the key is found by its name everywhere."""
    there = {column.attnum for column in new.columns if column.attnum}
    differences = []
    for column in new.columns if older and older[-1].matches_by_number(new) else ():
        was = next((c for schema in reversed(older) for c in schema.columns if c.name == column.name), None)
        if column.name in new.key and was is not None and was.attnum not in there:
            reason = f'column "{column.name}" of the key has a name by now that the target has for a dropped one'
            differences.append(Difference(Verdict.RESHAPE, reason))
    return differences


def dropped_before(older: Iterable[TableSchema], last: TableSchema) -> tuple[Column, ...]:
    """The columns that an older version has and the last one does not, each as its newest version has it. A dropped
    column with a known number may share its name with another column."""
    as_last: dict[object, Column] = {}
    for version in older:
        for column in version.columns:
            as_last[_identity_of(column, version)] = column
    here = {_identity_of(column, last) for column in last.columns}
    names = {column.name for column in last.columns}
    gone = {i: c for i, c in as_last.items() if i not in here and (_is_told(i, last) or c.name not in names)}
    by_name = {c.name: replace(c, attnum=0) for i, c in gone.items() if not _is_told(i, last)}
    told = tuple(c for i, c in gone.items() if _is_told(i, last))
    return told + tuple(c for name, c in by_name.items() if name not in {column.name for column in told})


def _is_told(identity: object, last: TableSchema) -> bool:
    """Whether the number of the column distinguishes it from the columns of the last version."""
    return bool(last.published) and isinstance(identity, tuple) and identity[0] == last.relation_oid


def _identity_of(column: Column, version: TableSchema) -> object:
    return (version.relation_oid, column.attnum) if column.attnum else column.name


def called_before(versions: Sequence[TableSchema], first: int, last: TableSchema) -> dict[str, int]:
    """Column names that the target may have, with their numbers, if everything below the version `first` is
    applied. The names come from the versions before `first`, or else from the first version. If two columns had one
    name, the later column counts."""
    related = [v for v in versions if v.relation_oid == last.relation_oid and v.published]
    before = [v for v in related if v.version < first] or related[:1]
    return {column.name: column.attnum for version in before for column in version.columns if column.attnum}


def filled_after(newer: Iterable[TableSchema], last: TableSchema) -> tuple[Column, ...]:
    """The columns with a default for older rows that only newer versions than the last one have, each as its first
    version has it."""
    filled: dict[object, Column] = {}
    for version in newer:
        for column in version.columns:
            if column.missing is not None and version.column_in(last, column) is None:
                filled.setdefault(_identity_of(column, version), column)
    return tuple(filled.values())


def _compare_columns(old: Column, new: Column) -> Iterator[Difference]:
    about = f'column "{new.name}" changed from {old.type}'
    if old.target != new.target:
        verdict = Verdict.FOLLOWED if widens(old.target, new.target) else Verdict.RESHAPE
        yield Difference(verdict, f"{about} ({old.target}) to {new.type} ({new.target})")
    elif (old.type_oid, old.typmod) != (new.type_oid, new.typmod):
        yield _followed(f"{about} to {new.type}")
    if old.mask != new.mask and old.name != new.name:
        yield _lacking(f'column "{old.name}" (mask {old.mask}) is called "{new.name}" by now (mask {new.mask})')
    elif old.mask != new.mask:
        yield _lacking(f'the mask of column "{new.name}" changed from {old.mask} to {new.mask} in the pipeline file')


def _identity(old: TableSchema, new: TableSchema) -> Difference:
    """The difference between two replica identities with the same key. Without a key, FULL makes `current` a
    multiset and every other identity leaves history alone, so the target is another one."""
    about = f"the replica identity changed from {old.identity} to {new.identity}"
    changes_kind = not new.key and "full" in (old.identity, new.identity)
    return Difference(Verdict.RESHAPE if changes_kind else Verdict.FOLLOWED, about)


# --- the catalogue ----------------------------------------------------------------------------------------------------


def compare_fingerprints(
    old: Fingerprint,
    new: Fingerprint,
    streamed: Callable[[], TableSchema | None] = lambda: None,
    *,
    told: bool = False,
) -> list[Difference]:
    """The differences between two readings of the catalogue that concern older rows.

    `streamed` returns the last version of the stream. If it has column numbers, the stream's next version is compared
    by number, and renames are detected there. With `told`, the event trigger wrote definitions into the stream, so only
    changes that an event trigger does not report count.
    """
    if old.relation_oid != new.relation_oid:
        return [_lacking("the table was dropped and created again")]
    if told:
        # The trigger reports a rewrite by ALTER. The stream shows whether TRUNCATE of the root emptied all leaves.
        has_rewritten_leaves = bool(old.partitions or new.partitions) and not _by_one_command(old, new)
        return [
            *_read_otherwise(old, new),
            *(_rewrite(old, new) if has_rewritten_leaves else ()),
            *_partitions(old, new),
            *_publication(old, new),
        ]
    return [
        *_columns(old, new, streamed),
        *_key(old, new),
        *_rewrite(old, new),
        *_partitions(old, new),
        *_publication(old, new),
    ]


def _columns(old: Fingerprint, new: Fingerprint, streamed: Callable[[], TableSchema | None]) -> Iterator[Difference]:
    before = {column.attnum: column for column in old.columns}
    after = {column.attnum: column for column in new.columns}
    dropped = dict(new.carried(old).dropped)
    for attnum, column in before.items():
        if attnum in dropped:
            # Its stream parks a table that cannot do without it.
            yield _followed(f'column "{column.name}" was dropped')
        elif attnum not in after:
            yield _lacking(f'column "{column.name}" was left out')
    for attnum, column in after.items():
        old_column = before.get(attnum)
        takes_a_name = old_column is None and attnum > old.last_attnum and _takes_a_name(column, dropped, streamed)
        if takes_a_name and not _has_numbers(streamed(), new):
            about = f'column "{column.name}" was dropped and added again'
            yield _lacking(f"{about}: older rows still have what the old one held")
        elif old_column is None:
            yield _added(column, old.last_attnum)
        elif old_column.name != column.name:
            verdict = Verdict.FOLLOWED if _has_numbers(streamed(), new) else Verdict.NEEDS_BACKFILL
            yield Difference(verdict, f'column "{old_column.name}" was renamed to "{column.name}"')
        if old_column is not None and _reads_otherwise(old_column, column):
            yield _altered(column)


def _read_otherwise(old: Fingerprint, new: Fingerprint) -> list[Difference]:
    """Differences for columns whose stored values have another text now, although nobody wrote them."""
    before = {column.attnum: column for column in old.columns}
    return [
        _altered(column)
        for column in new.columns
        if (column.attnum not in before and SPELLED_SINCE in column.spelling)
        or (column.attnum in before and _reads_otherwise(before[column.attnum], column))
    ]


def _altered(column: ColumnPrint) -> Difference:
    reason = f'the type of column "{column.name}" was altered, and older rows read as something else'
    return _lacking(reason, column.attnum)


def _has_numbers(shape: TableSchema | None, of: Fingerprint) -> bool:
    return shape is not None and bool(shape.published) and shape.relation_oid == of.relation_oid


def _takes_a_name(column: ColumnPrint, dropped: Mapping[int, str], streamed: Callable[[], TableSchema | None]) -> bool:
    """Whether the new column has the name of a dropped column, in the catalogue or in the stream's last version.
    The stream may not have the rename of the dropped column, and would then show no difference."""
    if column.name in dropped.values():
        return True
    shape = streamed()
    return shape is not None and any(c.name == column.name for c in shape.columns)


def _reads_otherwise(old: ColumnPrint, new: ColumnPrint) -> bool:
    """Whether the text of stored values changed without a rewrite. A label of the type was renamed, an attribute
    came or went, or the new type takes the same bytes (cidr and inet)."""
    if not are_alike(old.type_oid, new.type_oid):
        return True
    return any(new.spelling.get(part) != was for part, was in old.spelling.items() if part != SPELLED_SINCE)


def _added(column: ColumnPrint, last_attnum: int) -> Difference:
    about = f'column "{column.name}"'
    if column.attnum <= last_attnum:
        return _lacking(f"{about} was there before and is captured only now", column.attnum)
    if SPELLED_SINCE in column.spelling:
        reason = f"the type of {about} was altered since it was added, and older rows may read as something else"
        return _lacking(reason, column.attnum)
    if column.default is not None:
        # Whether the stream's shape can have it is found out by `capture.definitions.relation_versions`.
        return Difference(Verdict.FILLED, f"{about} was added with a default, which older rows get too")
    if column.missing is not None:
        return _lacking(f"{about} was added with a default, which older rows have too", column.attnum)
    if column.generated:
        return _lacking(f"{about} was added as a generated one, which older rows have too", column.attnum)
    return _followed(f"{about} was added")


def _key(old: Fingerprint, new: Fingerprint) -> list[Difference]:
    """A difference if the key was made again. Under FULL identity, also for a while between two readings, the
    stream sends whole rows without a key. The OID of the key shows whether it held all the time."""
    if new.key_made in (0, old.key_made):
        return []
    return [
        _lacking(
            "its key was made anew: rows that shared one before, under REPLICA IDENTITY FULL, were taken for one row"
        )
    ]


def _rewrite(old: Fingerprint, new: Fingerprint) -> list[Difference]:
    """Differences for new storage. With a new row in pg_attribute, ALTER TABLE rewrote the table; else VACUUM FULL,
    CLUSTER or TRUNCATE did."""
    renewed = _renewed(old, new)
    if old.relfilenode == new.relfilenode and not renewed:
        return []
    xmins = {column.attnum: column.xmin for column in old.columns}
    altered = [column.name for column in new.columns if xmins.get(column.attnum) != column.xmin]
    if not altered and renewed and not _by_one_command(old, new):
        itself = "itself" if len(renewed) == 1 else "themselves"
        renewal = f"{counted(len(renewed), 'partition')} got new storage by {itself}"
        was_logged = all(_has_its_toast_table(was, leaf) for was, leaf in renewed)
        cause = "TRUNCATE of a partition gives it" if was_logged else "SET UNLOGGED and SET LOGGED give it"
        return [_lacking(f"{renewal}, as {cause}")]
    can_be_unlogged = bool(renewed) or not _is_listed(old, new)
    if not altered and can_be_unlogged and not _has_its_toast_table(old, new):
        return [
            _lacking("ALTER TABLE rewrote the table and no column: what it got while it was UNLOGGED is in no stream")
        ]
    if not altered:
        return [_followed("the table got new storage, its columns are the same")]
    # A rewrite that altered no column from before gave new ones their values, a volatile default's, and no other any:
    # unless the same interval had another rewrite, behind which rows changed without WAL.
    new_columns = tuple(column.attnum for column in new.columns if column.attnum > old.last_attnum)
    are_new = all(column.attnum in new_columns for column in new.columns if xmins.get(column.attnum) != column.xmin)
    reason = f"the table was rewritten and {_names(altered)} {'added' if are_new else 'altered'}"
    return [_lacking(reason, *(new_columns if are_new and not can_be_unlogged else ()))]


def _is_listed(old: Fingerprint, new: Fingerprint) -> bool:
    """Whether a publication lists the table by itself, so that PostgreSQL refuses to make it UNLOGGED. A table that
    is published with its schema or with all tables can become UNLOGGED, and so can a leaf of any root."""
    return any(one.startswith("table ") for one in {*old.membership} & {*new.membership})


def _has_its_toast_table(old: Fingerprint | PartitionPrint, new: Fingerprint | PartitionPrint) -> bool:
    """Whether the TOAST table stayed the same. VACUUM FULL, CLUSTER and TRUNCATE keep it. ALTER TABLE replaces it,
    so SET UNLOGGED and SET LOGGED do."""
    return old.toast == new.toast or 0 in (old.toast, new.toast)


def _renewed(old: Fingerprint, new: Fingerprint) -> list[tuple[PartitionPrint, PartitionPrint]]:
    """The leaves with new storage, each before and after."""
    before = {leaf.oid: leaf for leaf in old.partitions}
    staying = [(before[leaf.oid], leaf) for leaf in new.partitions if leaf.oid in before]
    return [(was, leaf) for was, leaf in staying if was.relfilenode != leaf.relfilenode]


# Said by `capture.definitions.truncates`, since the catalogue alone cannot tell it from TRUNCATE of the root.
PARTITIONS_EMPTIED: Final = "all partitions got new storage in one transaction, as TRUNCATE of a partition gives it"


def emptied_by(old: Fingerprint, new: Fingerprint) -> int | None:
    """The transaction (32 bits) that gave all leaves new storage, as TRUNCATE does, of the root or of all leaves by
    name; None if no single transaction did."""
    if old.relation_oid != new.relation_oid or not _by_one_command(old, new):
        return None
    return _renewed(old, new)[0][1].xmin


def _by_one_command(old: Fingerprint, new: Fingerprint) -> bool:
    """Whether one transaction gave all leaves new storage and kept their TOAST tables.

    TRUNCATE of the root does so and is in the stream; TRUNCATE of a partition is not in the stream. With a single leaf
    the two look alike. TRUNCATE of all leaves by name looks the same too: see `emptied_by`.
    """
    renewed = _renewed(old, new)
    staying = {leaf.oid for leaf in old.partitions} & {leaf.oid for leaf in new.partitions}
    by_one = len(renewed) == len(staying) > 1 and len({leaf.xmin for _, leaf in renewed}) == 1
    return by_one and all(_has_its_toast_table(was, leaf) for was, leaf in renewed)


def _partitions_that(partitions: Sized, noun: str = "partition") -> str:
    return f"{counted(len(partitions), noun)} {plural(len(partitions), 'was')}"


def _partitions(old: Fingerprint, new: Fingerprint) -> Iterator[Difference]:
    before = {leaf.oid: leaf for leaf in old.partitions}
    after = {leaf.oid: leaf for leaf in new.partitions}
    attached = [leaf for oid, leaf in after.items() if oid not in before and not leaf.born_empty]
    created = [leaf for oid, leaf in after.items() if oid not in before and leaf.is_as_created]
    emptied = [leaf for oid, leaf in after.items() if oid not in before and leaf.born_empty and not leaf.is_as_created]
    gone = set(before) - set(after)
    returned = [leaf for oid, leaf in after.items() if oid in before and before[oid].links != leaf.links]
    if attached:
        yield _lacking(f"{_partitions_that(attached)} attached with what {plural(len(attached), 'it')} held")
    if emptied:
        # Root or leaf, by TRUNCATE or VACUUM FULL: of a leaf that no look had before, that cannot be told.
        yield _lacking(f"{_partitions_that(emptied)} created and got new storage, as TRUNCATE of a partition gives it")
    if returned:
        yield _lacking(f"{_partitions_that(returned)} detached and attached again")
    if gone:
        yield _lacking(f"{_partitions_that(gone)} detached or dropped")
    if created:
        yield _followed(f"{_partitions_that(created, 'empty partition')} created")


def _publication(old: Fingerprint, new: Fingerprint) -> Iterator[Difference]:
    if not new.membership and old.membership:
        yield _lacking("the table was taken out of the publication")
    elif new.membership and not set(old.membership) & set(new.membership):
        how = "was taken out of the publication and added again" if old.membership else "was added to the publication"
        yield _lacking(f"the table {how}")
    elif old.publication_xmin != new.publication_xmin:
        yield _lacking("the publication's options changed, and with them what it publishes")
    elif _was_elsewhere(old, new):
        yield _lacking("it was moved to another schema and back, where it was not published")
    if old.row_filter != new.row_filter:
        yield _lacking("the publication's row filter changed")


def _was_elsewhere(old: Fingerprint, new: Fingerprint) -> bool:
    """Whether a table that is published with its schema was in another one for a while. SET SCHEMA writes the
    table's dependency on its schema, and no other command does."""
    is_by_schema = all(one.startswith("schema ") for one in (*old.membership, *new.membership))
    is_moved = 0 not in (old.schema_xmin, new.schema_xmin) and old.schema_xmin != new.schema_xmin
    return bool(new.membership) and is_by_schema and is_moved


def _names(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names) or "none"
