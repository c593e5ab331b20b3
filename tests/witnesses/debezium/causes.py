"""Puts each table that differs from its source, and each end of the engine, under one cause.

A cause is what somebody found who read the verdicts. The first whose text matches counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tests.witnesses.captured_database import TableVerdict

# The lines that are named below are of this version.
DOCUMENTATION: Final = (
    "https://github.com/debezium/debezium/blob/v3.6.1.Final/documentation/modules/ROOT/pages/connectors/postgresql.adoc"
    "?plain=1"
)
_NO_DDL: Final = f"[no DDL]({DOCUMENTATION}#L116)"


@dataclass(frozen=True, slots=True)
class Cause:
    """`text` is searched in a verdict's reason. `documented` leads to Debezium's documentation of it, "" where it has
    none that was found. `varies` from play to play: the engine reads a part of a definition beside the stream, when it
    comes to the table's next change."""

    text: str
    what: str
    documented: str = ""
    varies: bool = False

    def is_of(self, verdict: TableVerdict) -> bool:
        return re.search(self.text, verdict.reason) is not None


CAUSES: Final = (
    Cause(
        "^another table had its name before",
        "the table was dropped and created again under its name: the rows of the first one stay",
        _NO_DDL,
    ),
    Cause(
        "^partitioned|^no event of it came, and it ",
        "a partition was attached, detached, dropped or truncated, and no event has its rows; the publication names "
        "the root",
        f"{_NO_DDL}, [events by root or by partition]({DOCUMENTATION}#L4617)",
    ),
    Cause(
        "only values of .*: source None, events 0",
        "NULL arrived as 0, since the column was NOT NULL by the time that the engine read the definition",
        f"[definitions are read beside the stream]({DOCUMENTATION}#L2340)",
        varies=True,
    ),
    Cause(
        "^altered: .*; no event had ",
        "ALTER TABLE added columns or gave them other names, and no row changed after that",
        f"{_NO_DDL}, [late defaults]({DOCUMENTATION}#L2337)",
    ),
    Cause(
        "^altered",
        "ALTER TABLE gave earlier rows other values, or a column another name or type",
        _NO_DDL,
    ),
    Cause("^a type of it altered", "ALTER TYPE changed the attributes of a composite type", _NO_DDL),
    Cause(
        r"^never altered: .*source .*: \(\(",
        "arrays of two dimensions arrive without their values, and `name[]` does not arrive",
    ),
    Cause(
        r"\(interval, .*source -?infinity",
        "an infinite `interval` arrives as one of length zero",
        f"infinite [timestamps]({DOCUMENTATION}#L1992) only",
    ),
    Cause(
        r"\((int2|oid)vector, .*events \(\)",
        "`int2vector` and `oidvector` arrive as empty arrays",
    ),
    Cause(
        r"could not open relation with OID|Cannot invoke \"String\.hashCode\(\)\"",
        "the engine ended, since a table or a type was dropped while it read the definition; started again, it went on",
        f"[definitions are read beside the stream]({DOCUMENTATION}#L2340)",
        varies=True,
    ),
)


def cause(verdict: TableVerdict) -> Cause | None:
    """None if nobody has read a verdict like this."""
    return next((one for one in CAUSES if one.is_of(verdict)), None)
