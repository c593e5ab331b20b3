"""Writes the section of the witnesses' page that has the plays of Debezium's engine, with the causes of differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tests.witnesses.captured_database import TableVerdict
from tests.witnesses.debezium.causes import CAUSES, DOCUMENTATION, Cause, cause
from tests.witnesses.debezium.engine import SETTINGS
from tests.witnesses.scoreboard import OUTCOMES, Play
from tests.witnesses.scoreboard_page import cell, row

# What only Tidemark does.
_OURS: Final = ("repaired", "marked", "parked")
_NOTES: Final = f"""\
Debezium's engine writes events, not tables. A consumer that was written for this test applies them:

- An event with a key updates or deletes the row of its key, or adds one.
- An event without a key changes one row that equals `before`. A table without a primary key has REPLICA IDENTITY FULL,
  as Debezium's documentation [asks for]({DOCUMENTATION}#L1280).
- An event of TRUNCATE removes all rows.
- A column that is new in an event has the default of the event's schema in earlier rows.
- A value [that PostgreSQL did not send]({DOCUMENTATION}#L2301) stays as it was.

Both read publications with `publish_via_partition_root`, by `pgoutput`. The slot was there before the first table.
After an error the engine was started again where it had ended. This version does not start while a domain over an enum
type is there, which was [mended later](https://github.com/debezium/debezium/pull/7929): the test drops such domains
first. Beside the connection the engine had these options:
"""
_LEGEND: Final = f"""
Values are compared, not how they are written. Columns that no publication has, such as generated ones, are not
compared. What the two lines count is not quite the same:

- Debezium [has no event](#why-tables-differ-with-debezium) of a dropped table, so a consumer keeps its rows. "dropped"
  was not compared. Tidemark's `history` of a dropped table was.
- A table that never had a row has no event either, and is not counted. In Tidemark's lake it is an empty table.
- Tidemark repaired tables by itself, with a backfill. Debezium reads a table again when somebody asks for
  [a snapshot]({DOCUMENTATION}#L260). In this play nobody did.
"""


def section(plays: Sequence[Play], ours: Sequence[Play]) -> str:
    """The section in Markdown, "" if the engine played nothing. `ours` are Tidemark's plays; those of the same files
    are shown below the engine's."""
    if not plays:
        return ""
    options = ", ".join(f"`{name}={value}`" for name, value in SETTINGS.items())
    lines = [
        "## The same files with Debezium's engine",
        "",
        "PostgreSQL's files were played again, with Debezium's embedded engine in the place of Tidemark. The command",
        "`python -m tests.witnesses --suite regression --lake debezium` writes this section.",
        "",
        row("read by", "tests", "PostgreSQL", "files", *OUTCOMES),
        "|" + "---|" * (4 + len(OUTCOMES)),
        *(line for play in plays for line in _rows(play, ours)),
        _LEGEND,
        _NOTES,
        f"{options}.",
        "",
        "### Why tables differ with Debezium",
        "",
        "The engine reads a part of a definition beside the stream. What comes of that varies from play to play.",
        "",
        row("why", "tables or runs", "for example", "Debezium's documentation"),
        "|---|---|---|---|",
        *_causes([verdict for play in plays for verdict in play.set_aside]),
    ]
    return "\n".join(lines) + "\n"


def _rows(play: Play, ours: Sequence[Play]) -> Iterator[str]:
    yield _row(f"Debezium's engine {play.lake.rpartition(' ')[2]}", play, not_done=_OURS)
    beside = [one for one in ours if (one.suite, one.version, one.chosen) == (play.suite, play.version, play.chosen)]
    for one in beside[:1]:
        yield _row("Tidemark", one)


def _row(read_by: str, play: Play, not_done: Sequence[str] = ()) -> str:
    counts = ("–" if one in not_done else f"{play.outcomes[one]:,}" for one in OUTCOMES)
    return row(read_by, play.suite, str(play.version), play.chosen or f"{play.covered['files']:,}", *counts)


def _causes(verdicts: Sequence[TableVerdict]) -> Iterator[str]:
    """The most frequent first. What nobody has read yet is its own cause."""
    of: dict[Cause, list[TableVerdict]] = {one: [] for one in CAUSES}
    for verdict in verdicts:
        of.setdefault(cause(verdict) or Cause("", cell(verdict.reason)), []).append(verdict)
    for one, found in sorted(of.items(), key=lambda item: -len(item[1])):
        if found:
            example = f"{found[0].file}: {found[0].table}"
            yield row(one.what, str(len(found)), example, one.documented or "–")
