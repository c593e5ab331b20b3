"""Tables that are parked for a change of their definition which is followed by now -> merged again, by themselves (R6).

An older version of Tidemark parked a table for what this one follows; or the stream showed a name, and only later which
column it was. Everything since is staged, in shapes that the ledger has; so each of them is compared with the one
before, from the shape on that the target has. Only a table leaves whose error names nothing but columns that changed
their type, and such that the shapes show to have been renamed, or the catalogue to have been dropped: what else the
error may say is not seen in them.
"""

from __future__ import annotations

import logging
import re
from itertools import pairwise
from typing import Final

from tidemark.errors import SchemaNotFollowed
from tidemark.formats.error_record import ErrorRecord
from tidemark.ledger import schema_versions, tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.tables import TableRow
from tidemark.schema import table_life
from tidemark.schema.evolution import STOPS, added_again, compare_schemas, with_numbers
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import TableSchema

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


def let_go(ledger: Ledger) -> list[str]:
    """End the park of every table whose definition is followed after all; which they are."""
    gone = []
    for row in tables.all_of(ledger):
        if row.life.merge != table_life.PARKED or row.error is None or not (reasons := _told(row.error)):
            continue
        merged = schema_versions.merged(ledger, row.table)
        if merged is None:
            continue
        versions = [v for v in schema_versions.streamed(ledger, row.table) if v.version >= merged.version]
        versions = with_numbers(versions)
        dropped = _gone(row, versions)
        if not _is_followed(versions, dropped) or not all(_is_seen(r, versions, dropped) for r in reasons):
            continue
        if tables.unpark(ledger, row.table):
            log.info("%s is merged again: what parked it is followed by now", row.table)
            gone.append(row.table)
    return gone


def _told(error: ErrorRecord) -> list[str]:
    """The differences that the error tells, none if it is another error."""
    told = _DIFFERENCES.search(error.message)
    return told[1].split("; ") if error.kind == SchemaNotFollowed.__name__ and told is not None else []


def _gone(row: TableRow, versions: list[TableSchema]) -> set[int]:
    """The numbers of columns that the catalogue says were dropped."""
    seen = None if row.fingerprint is None else Fingerprint.from_json(row.fingerprint)
    if seen is None or not versions or seen.relation_oid != versions[-1].relation_oid:
        return set()
    return {attnum for attnum, _ in seen.dropped}


def _is_seen(reason: str, versions: list[TableSchema], gone: set[int]) -> bool:
    """Whether the shapes say all there is to say of the difference."""
    renamed = {name for old, new in pairwise(versions) for name in new.other_names(old)}
    dropped = {c.name for version in versions for c in version.columns if c.attnum in gone}
    if (column := _RENAMED.fullmatch(reason)) is not None:
        return column[1] in renamed | dropped
    if _NAMES_MOVED.fullmatch(reason) is not None or _NAME_OF_A_DROPPED_ONE.fullmatch(reason) is not None:
        return all(version.published for version in versions)
    if (key := _KEY.fullmatch(reason)) is not None:
        return not renamed.isdisjoint(key[1].split('", "'))
    return _TYPE_CHANGED.fullmatch(reason) is not None


def _is_followed(versions: list[TableSchema], gone: set[int]) -> bool:
    differences = [
        one
        for old, new in pairwise(versions)
        for one in compare_schemas(old, new, [c.name for c in old.columns if c.attnum in gone])
    ]
    for number in range(1, len(versions)):
        differences += added_again(versions[:number], versions[number])
    return len(versions) > 1 and all(one.verdict not in STOPS for one in differences)
