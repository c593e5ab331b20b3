"""Tables that are parked for a change of their definition which is followed by now -> merged again, by themselves (R6).

    followed by now    an older version of Tidemark parked for it; or the stream showed a name, and only later which
                       column it was
    over by now        a column was left out of the publication, and the newest change has it again; one had a name that
                       the target uses, and a run that began later saw it called otherwise, or gone: marked, since what
                       changed meanwhile lacks the column

That the catalogue has a left out column again is not enough: the look may be older than the shape that lacks it, and a
table that left on it would go on in that shape, so that no change would ever tell that the column is left out.

Everything since is staged, in shapes that the ledger has; so each of them is compared with the one before, from the
shape on that the target has, or from the first. Only a table leaves whose error names nothing but columns that changed
their type, such that the shapes show to have been renamed or to be back, or the catalogue to have been dropped: what
else the error may say is not seen in them. Another type, key or identity that is as before again is none of these: what
is staged of the time between fits into no table with the rest (`capture.definitions.successor_shapes`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final

from tidemark.capture.definitions.marks import SOURCE_CHANGED
from tidemark.errors import SchemaNotFollowed
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger.captured import schema_versions, tables
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.connection import Ledger
from tidemark.ledger.staged import batches
from tidemark.names import alike, is_taken
from tidemark.schema import table_life
from tidemark.schema.evolution import STOPS, added_again, compare_schemas, with_numbers
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import Column, TableSchema

log = logging.getLogger(__name__)

_DIFFERENCES: Final = re.compile(r"is not followed: (.*)\. Its changes stay", re.DOTALL)
_TYPE_CHANGED: Final = re.compile(r'column "[^"]*" changed from [^";]*')
_RENAMED: Final = re.compile(r'column "([^"]*)" was dropped, renamed or left out')
_NAMES_MOVED: Final = re.compile(
    r'column "[^"]*" was renamed to "[^"]*"|columns had each other\'s names for a while', re.DOTALL
)
_NAME_OF_A_DROPPED_ONE: Final = re.compile(
    r'column "[^"]*" has a name by now that the target has for a dropped one'
    r'|column "[^"]*" was dropped and added again as .*, and the target has the dropped one .*',
    re.DOTALL,
)
_KEY: Final = re.compile(r'the key changed from "([^;]*)" to "[^;]*"')
_NAME_TAKEN: Final = re.compile(r'column "[^"]*" has a name that the target already uses')


@dataclass(frozen=True, slots=True)
class KnownColumns:
    """What the last look at the catalogue said of a table's columns, by their numbers: what those that are captured are
    called, nothing of it where the look may be from before the park; and which were dropped, which none ceases to be.
    Both are empty where it was a look at another relation, or there was none."""

    captured: dict[int, str]
    dropped: frozenset[int]

    @classmethod
    def of(cls, row: TableRow, versions: list[TableSchema], last_run: datetime | None) -> KnownColumns:
        """`last_run`: `batches.first_of_last_run`."""
        look = None if row.fingerprint is None else Fingerprint.from_json(row.fingerprint)
        if look is None or not versions or look.relation_oid != versions[-1].relation_oid:
            return cls({}, frozenset())
        is_newer = last_run is not None and row.error_at is not None and row.error_at < last_run
        captured = {c.attnum: c.name for c in look.columns} if is_newer else {}
        return cls(captured, frozenset(attnum for attnum, _ in look.dropped))


def let_go(ledger: Ledger) -> list[str]:
    """End the park of every table whose definition is followed after all; which they are."""
    gone = []
    for row in tables.all_of(ledger):
        if row.life.merge != table_life.PARKED or row.error is None or not (reasons := _told(row.error)):
            continue
        merged = schema_versions.merged(ledger, row.table)
        versions = _never_merged(ledger, row.table) if merged is None else waiting(ledger, merged)
        if not versions:
            continue
        seen = KnownColumns.of(row, versions, batches.first_of_last_run(ledger))
        if not fit(versions, seen.dropped | _back(versions).keys()) or not all(
            _is_seen(r, versions, seen) for r in reasons
        ):
            continue
        with ledger.transaction():
            if not tables.unpark(ledger, row.table):
                continue
            if missed := _missed(reasons, versions, seen):
                names = ", ".join(f'"{name}"' for name in missed.values())
                reason = f"it was parked while changes came without column {names}"
                tables.mark_needs_backfill(ledger, row.table, SOURCE_CHANGED, reason, list(missed))
        log.info("%s is merged again: what parked it is followed by now", row.table)
        gone.append(row.table)
    return gone


def waiting(ledger: Ledger, merged: TableSchema) -> list[TableSchema]:
    """The shapes of what is staged of a table that was merged in this one, which is the first of them."""
    streamed = schema_versions.streamed(ledger, str(merged.table))
    return with_numbers([version for version in streamed if version.version >= merged.version])


def _never_merged(ledger: Ledger, table: str) -> list[TableSchema]:
    """The shapes of a table of which no change was merged yet, those of its chunks too: the target will be of them all,
    or has the chunks already. None where a reader saw the newest, which no change shows."""
    versions, streamed = tables.versions(ledger, table), schema_versions.streamed(ledger, table)
    return with_numbers(versions) if streamed and streamed[-1].version == versions[-1].version else []


def _told(error: ErrorRecord) -> list[str]:
    """The differences that the error tells, none if it is another error."""
    told = _DIFFERENCES.search(error.message)
    return told[1].split("; ") if error.kind == SchemaNotFollowed.__name__ and told is not None else []


def _missed(reasons: list[str], versions: list[TableSchema], seen: KnownColumns) -> dict[int, str]:
    """Number and name of the columns that some staged change lacks and its row at the source had: they were in a shape
    before that change's, or had a name under which no shape can have them."""
    missed = _back(versions)
    if any(_NAME_TAKEN.fullmatch(reason) for reason in reasons):
        merged = {column.attnum for column in versions[0].columns}
        missed |= {number: name for number, name in seen.captured.items() if number not in merged}
    return {number: missed[number] for number in sorted(missed.keys() - seen.dropped)}


def _back(versions: list[TableSchema]) -> dict[int, str]:
    """Number and name of the columns that some shape lacks which the one before had, and that the newest has again.
    Numbers tell nothing across relations."""
    if len({version.relation_oid for version in versions}) != 1:
        return {}
    left_out = {column.attnum for column in _left_out(versions)}
    return {c.attnum: c.name for c in versions[-1].columns if c.attnum and c.attnum in left_out}


def _left_out(versions: list[TableSchema]) -> list[Column]:
    """The columns of each shape that the next one lacks."""
    return [c for old, new in pairwise(versions) for c in old.columns if old.column_in(new, c) is None]


def _is_seen(reason: str, versions: list[TableSchema], seen: KnownColumns) -> bool:
    """Whether shapes and catalogue say all there is to say of the difference."""
    if _NAME_TAKEN.fullmatch(reason) is not None:
        names = seen.captured.values()
        return bool(names) and not any(map(is_taken, names)) and not alike(names)
    if len(versions) < 2:
        return False
    renamed = {name for old, new in pairwise(versions) for name in new.other_names(old)}
    gone_or_back = seen.dropped | _back(versions).keys()
    told = {c.name for version in versions for c in version.columns if c.attnum in gone_or_back}
    if (column := _RENAMED.fullmatch(reason)) is not None:
        return column[1] in renamed | told
    if _NAMES_MOVED.fullmatch(reason) is not None or _NAME_OF_A_DROPPED_ONE.fullmatch(reason) is not None:
        return all(version.published for version in versions)
    if (key := _KEY.fullmatch(reason)) is not None:
        return not renamed.isdisjoint(key[1].split('", "'))
    return _TYPE_CHANGED.fullmatch(reason) is not None


def fit(versions: list[TableSchema], told: Collection[int]) -> bool:
    """Whether one table can take what is staged of all these shapes, oldest first. A column that one of them lacks
    stops nothing where it is `told`, by its number, that it was dropped or is captured again."""
    differences = [
        one
        for old, new in pairwise(versions)
        for one in compare_schemas(old, new, [column.name for column in old.columns if column.attnum in told])
    ]
    for number in range(1, len(versions)):
        differences += added_again(versions[:number], versions[number])
    return bool(versions) and all(one.verdict not in STOPS for one in differences)
