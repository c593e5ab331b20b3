"""Renders docs/witnesses.md from the plays in docs/witnesses.json: which suites were played on which servers, and per
suite what became of the tables of each file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from tests.witnesses.captured_database import TableVerdict
from tests.witnesses.scoreboard import GOOD, OUTCOMES, Play

_HEAD: Final = """\
# PostgreSQL's own tests as witnesses

`make witnesses POSTGRES_SOURCE=/path/to/postgresql` plays the test suites of a PostgreSQL source tree in a captured
database. Capture runs between the statements and at the end of each file. Then every table that the file changed is
compared with its source by a reader of its own. This page is written by that command.

All versions were played with the tests of PostgreSQL 18. A statement that an older server does not know fails there,
and the file goes on.
"""
_LEGEND: Final = """
| outcome | meaning |
|---|---|
| equal | the table equals its source |
| repaired | Tidemark marked the table by itself; a backfill made it equal |
| dropped | not at the source any more, or in another shape |
| marked | still marked after the backfill |
| parked | the table waits for a person |
| differs | not equal and not marked: a fault |
| error | a run failed: a fault |

| lake | what was tested |
|---|---|
| Delta | Spark merged into Delta tables; `history` was replayed to the rows of `current` |
| rows | changes were merged into lists of rows, without Spark: capture, definitions, backfill and plans were tested, \
and how Spark writes Delta tables was not |
"""
_LAKES: Final = {"delta": "Delta", "rows": "rows"}
# What keeps a file from being played on some servers.
_NOTES: Final = {
    "subscription": "002_types needs the extension hstore, which the embedded servers of PostgreSQL 16 and 18 lack.",
}
# Why a table or a run may be set aside: what its reason has in it -> what somebody who read it found.
READ: Final[Mapping[str, str]] = {
    "no column of it is captured": (
        "the table has no column, and was dropped in the same file: "
        "[what no table can take](schema-changes.md#what-no-table-can-take)"
    ),
    'relation "user_logins" does not exist': (
        "a run began while the file had a login trigger that fails: until the file drops it, nobody can log in"
    ),
}


def cause(verdict: TableVerdict) -> str | None:
    """What somebody found who read a verdict that is none of `GOOD`; None where nobody has."""
    return next((found for text, found in READ.items() if text in verdict.reason), None)


def page(plays: Sequence[Play], excluded: Mapping[str, Mapping[str, str]], peer: str = "") -> str:
    """The page in Markdown. `excluded` maps a suite to its files that are not played, with the reasons. `peer` is the
    section of another tool's plays, "" without any."""
    sections = [_section(list(of_suite), excluded[suite]) for suite, of_suite in groupby(plays, lambda p: p.suite)]
    return "\n".join([_HEAD, *_summary(plays), _LEGEND, *filter(None, [peer]), *sections])


def _summary(plays: Sequence[Play]) -> Iterator[str]:
    """Suites by server. Of several plays of all files the first counts, and without one all others."""
    versions = sorted({play.version for play in plays}, reverse=True)
    yield row("tables compared in", *(f"PostgreSQL {version}" for version in versions))
    yield "|" + "---|" * (len(versions) + 1)
    for suite, of_suite in groupby(plays, lambda play: play.suite):
        told: dict[int, list[Play]] = {version: [] for version in versions}
        for play in of_suite:
            if not told[play.version] or (play.chosen and told[play.version][0].chosen):
                told[play.version].append(play)
        cells = (_told(told[version]) for version in versions)
        yield row(f"[{suite}](#{_title(suite).lower().replace(' ', '-')})", *cells)


def _told(plays: Sequence[Play]) -> str:
    if not plays:
        return "–"
    outcomes = sum((play.outcomes for play in plays), Counter())
    bad = [f"{outcomes[outcome]} {outcome}" for outcome in OUTCOMES if outcome not in GOOD and outcomes[outcome]]
    return ", ".join([f"{outcomes.total():,}", *bad, *(["of chosen files"] if plays[0].chosen else [])])


def _title(suite: str) -> str:
    return f"The {suite} tests"


def _section(plays: list[Play], excluded: Mapping[str, str]) -> str:
    suite = plays[0].suite
    whole, samples = [play for play in plays if not play.chosen], [play for play in plays if play.chosen]
    lines = [
        f"## {_title(suite)}",
        "",
        row("PostgreSQL", "lake", "event trigger", "files", *OUTCOMES),
        "|" + "---|" * (4 + len(OUTCOMES)),
        *map(_play_row, plays),
        "",
        "Played:",
        "",
        *(f"- {_named(play)}: {_covered(play)}." for play in plays),
        "",
        *([_NOTES[suite], ""] if suite in _NOTES else []),
        *_set_aside(plays),
        *_files(whole),
        *_repairs(whole, samples),
        *_without_tables(whole),
        *(["Not played:", ""] if excluded else []),
        *(f"- {name}: {reason}" for name, reason in excluded.items()),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _play_row(play: Play) -> str:
    counts = (str(play.outcomes[outcome]) for outcome in OUTCOMES)
    trigger = "with" if play.has_trigger else "without"
    return row(str(play.version), _LAKES[play.lake], trigger, play.chosen or "all", *counts)


def _named(play: Play) -> str:
    trigger = "" if play.has_trigger else ", without the event trigger"
    return f"PostgreSQL {play.version}, {_LAKES[play.lake]}{trigger}{play.chosen and f', {play.chosen}'}"


def _covered(play: Play) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in play.covered.items() if count)


def _set_aside(plays: Iterable[Play]) -> Iterator[str]:
    """What is not equal in the end, and was read."""
    found = [(play, verdict) for play in plays for verdict in play.set_aside]
    if found:
        yield row("outcome", "file", "table", "PostgreSQL", "why")
        yield "|" + "---|" * 5
        # The same table on several servers is one row.
        of = {(v.outcome, v.file, v.table, cause(v) or cell(v.reason)): "" for _, v in found}
        for play, v in found:
            told = (v.outcome, v.file, v.table, cause(v) or cell(v.reason))
            versions = dict.fromkeys([*filter(None, of[told].split(", ")), str(play.version)])
            of[told] = ", ".join(versions)
        for (outcome, file, table, why), versions_told in of.items():
            yield row(outcome, file, table, versions_told, why)
        yield ""


def _columns(plays: Sequence[Play]) -> list[str]:
    """The server's version; where one was played twice, with how."""
    times = Counter(play.version for play in plays)
    return [str(play.version) if times[play.version] == 1 else _named(play)[len("PostgreSQL ") :] for play in plays]


def _files(plays: Sequence[Play]) -> Iterator[str]:
    names = dict.fromkeys(file for play in plays for file in play.files if play.files[file])
    if not names:
        return
    yield "Tables by file and server, as equal / repaired / dropped. Any other outcome is named."
    yield ""
    yield row("file", *_columns(plays))
    yield "|" + "---|" * (1 + len(plays))
    for file in names:
        yield row(file, *(_counts(play.files.get(file, {})) for play in plays))
    yield ""


def _counts(outcomes: Mapping[str, int]) -> str:
    if not outcomes:
        return "–"
    good = " / ".join(str(outcomes.get(outcome, 0)) for outcome in GOOD)
    bad = [f", {count} {outcome}" for outcome, count in outcomes.items() if outcome not in GOOD]
    return good + "".join(bad)


def _repairs(whole: Sequence[Play], samples: Sequence[Play]) -> Iterator[str]:
    """Why tables were marked, each reason once."""
    plays = [*whole, *samples]
    reasons = sorted({reason for play in plays for reason in play.repairs})
    if not reasons:
        return
    yield "Why tables were repaired, and how many:"
    yield ""
    yield row("reason", *_columns(whole), *(["other plays"] if samples else []), "for example")
    yield "|" + "---|" * (2 + len(whole) + bool(samples))
    for reason in reasons:
        counts = [_tables([play], reason) for play in whole] + ([_tables(samples, reason)] if samples else [])
        example = next(play.repairs[reason].example for play in plays if reason in play.repairs)
        yield row(cell(reason), *counts, example)
    yield ""


def _tables(plays: Iterable[Play], reason: str) -> str:
    return str(sum(play.repairs[reason].tables for play in plays if reason in play.repairs) or "")


def _without_tables(plays: Sequence[Play]) -> list[str]:
    played = dict.fromkeys(file for play in plays for file in play.files)
    without = [file for file in played if not any(play.files.get(file) for play in plays)]
    return [f"Played, and left no table with a column and a change: {', '.join(without)}.", ""] if without else []


def cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
