"""Tables that are parked for a change of their definition which is followed by now -> merged again, by themselves (R6).

An older version of Tidemark parked a table for what this one follows. Everything since is staged, in shapes that the
ledger has; so each of them is compared with the one before, from the shape on that the target has. Only a table whose
error names nothing but columns that changed their type leaves: what else the error may say is not seen in the shapes.
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
from tidemark.schema import table_life
from tidemark.schema.evolution import Verdict, added_again, compare_schemas
from tidemark.schema.table import TableSchema

log = logging.getLogger(__name__)

_DIFFERENCES: Final = re.compile(r"is not followed: (.*)\. Its changes stay", re.DOTALL)
_TYPE_CHANGED: Final = re.compile(r'column "[^"]*" changed from [^";]*')


def let_go(ledger: Ledger) -> list[str]:
    """End the park of every table whose definition is followed after all; which they are."""
    gone = []
    for row in tables.all_of(ledger):
        if row.life.merge != table_life.PARKED or row.error is None or not _names_types_alone(row.error):
            continue
        merged = schema_versions.merged(ledger, row.table)
        versions = schema_versions.streamed(ledger, row.table)
        if merged is None or not _is_followed([v for v in versions if v.version >= merged.version]):
            continue
        if tables.unpark(ledger, row.table):
            log.info("%s is merged again: what parked it is followed by now", row.table)
            gone.append(row.table)
    return gone


def _names_types_alone(error: ErrorRecord) -> bool:
    """Whether every difference that the error tells is a column's type."""
    told = _DIFFERENCES.search(error.message)
    if error.kind != SchemaNotFollowed.__name__ or told is None:
        return False
    return all(_TYPE_CHANGED.fullmatch(reason) is not None for reason in told[1].split("; "))


def _is_followed(versions: list[TableSchema]) -> bool:
    differences = [one for old, new in pairwise(versions) for one in compare_schemas(old, new)]
    for number in range(1, len(versions)):
        differences += added_again(versions[:number], versions[number])
    return len(versions) > 1 and all(one.verdict is not Verdict.PARK for one in differences)
