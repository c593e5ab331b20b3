"""Renders docs/witnesses.md: what became of each table of each suite, from the verdicts that the suites left as JSON.

verdicts of a suite and a server ──keep()──► regression-18.json, … ──page()──► Markdown
"""

from __future__ import annotations

import json
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import Final

from tests.witnesses.captured_database import TableVerdict

OUTCOMES: Final = ("equal", "repaired", "dropped", "marked", "parked", "differs", "error")
_ORDER: Final = ("regression", "isolation", "subscription", "decoding", "decoding-specs")
_HEAD: Final = """\
# PostgreSQL's own tests as witnesses

`make witnesses POSTGRES_SOURCE=/path/to/postgresql` plays the test suites of a PostgreSQL source tree in a captured
database. Capture runs between the statements and at the end of each file. Then every table that the file changed is
compared with its source by a reader of its own. This page is written by that command.

| outcome | meaning |
|---|---|
| equal | the table equals its source |
| repaired | Tidemark marked the table by itself, for the reason below; a backfill made it equal |
| dropped | not at the source any more, or in another shape |
| marked | still marked after the backfill |
| parked | the table waits for a person; the reason says for what |
| differs | not equal and not marked: a fault |
| error | a run failed: a fault |
"""

_LAKES: Final = {
    "delta": "Spark merged into Delta tables; `history` was replayed to the rows of `current`.",
    "rows": (
        "Changes were merged into lists of rows, without Spark: capture, definitions, backfill and plans were tested, "
        "and how Spark writes Delta tables was not."
    ),
}


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """`lake` is what was merged into, "delta" or "rows"; `part` says of what this is the result, as "1/10". `files`
    are those that were played, `covered` counts what was; `excluded` maps a file that is not played to why."""

    suite: str
    version: int
    lake: str
    part: str
    files: Sequence[str]
    verdicts: Sequence[TableVerdict]
    covered: Mapping[str, int]
    excluded: Mapping[str, str]

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(verdict.outcome for verdict in self.verdicts)

    def keep(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{self.suite}-{self.version}-{self.lake}-{self.part}".replace("/", " of ")
        (folder / f"{name}.json").write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def kept(cls, file: Path) -> SuiteResult:
        kept = json.loads(file.read_text())
        return cls(**{**kept, "verdicts": [TableVerdict(**verdict) for verdict in kept["verdicts"]]})

    def __add__(self, other: SuiteResult) -> SuiteResult:
        """Of two parts."""
        covered = Counter(self.covered) + Counter(other.covered)
        verdicts = [*self.verdicts, *other.verdicts]
        return replace(self, files=[*self.files, *other.files], verdicts=verdicts, covered=covered)


def kept_parts(folder: Path) -> list[SuiteResult]:
    """What runs left there, in order."""
    parts = [SuiteResult.kept(file) for file in folder.glob("*.json")]
    return sorted(parts, key=lambda one: (one.suite, one.version, one.lake, int(one.part.split("/")[0])))


def kept_in(folder: Path) -> list[SuiteResult]:
    """The same, the parts of each put together."""
    parts = kept_parts(folder)
    together = groupby(parts, key=lambda one: (one.suite, one.version, one.lake))
    return [reduce(operator.add, of_one) for _, of_one in together]


def page(results: Iterable[SuiteResult], before: str = "") -> str:
    """The page in Markdown. The sections of a page from before stay of suites that have no result."""
    sections = dict(_sections(before))
    sections |= {_title(result): _section(result) for result in results}
    return "\n".join([_HEAD, *(sections[title] for title in sorted(sections, key=_rank))])


def _sections(text: str) -> Iterator[tuple[str, str]]:
    for section in re.split(r"^(?=## )", text, flags=re.M)[1:]:
        yield section.partition("\n")[0], section.rstrip("\n") + "\n"


def _rank(title: str) -> tuple[int, str]:
    """In the order of the suites."""
    return next((n for n, suite in enumerate(_ORDER) if f" {suite} tests" in title), len(_ORDER)), title


def _title(result: SuiteResult) -> str:
    return f"## The {result.suite} tests, on PostgreSQL {result.version}"


def _section(result: SuiteResult) -> str:
    by_file = Counter((verdict.file, verdict.outcome) for verdict in result.verdicts)
    covered = ", ".join(f"{count:,} {what}" for what, count in result.covered.items())
    lines = [
        _title(result),
        "",
        _LAKES[result.lake.partition(",")[0]],
        "",
        f"Played{result.lake.partition(',')[2]}: {covered}.",
        "",
        "| file | " + " | ".join(OUTCOMES) + " |",
        "|---|" + "---|" * len(OUTCOMES),
        "| **all** | " + " | ".join(str(result.outcomes[outcome]) for outcome in OUTCOMES) + " |",
        *(
            f"| {file} | " + " | ".join(str(by_file[file, outcome] or "") for outcome in OUTCOMES) + " |"
            for file in result.files
            if any(by_file[file, outcome] for outcome in OUTCOMES)
        ),
        "",
        *_reasons(result.verdicts),
        *_without_tables(result),
        *(["Not played:", ""] if result.excluded else []),
        *(f"- {name}: {reason}" for name, reason in result.excluded.items()),
    ]
    return "\n".join(lines) + "\n"


def _without_tables(result: SuiteResult) -> list[str]:
    without = [file for file in result.files if file not in {verdict.file for verdict in result.verdicts}]
    return [f"Played, and left no table with a column and a change: {', '.join(without)}.", ""] if without else []


def _reasons(verdicts: Sequence[TableVerdict]) -> list[str]:
    """Why tables are not equal from the stream alone, each reason once, with how many tables and some of them."""
    tables: dict[tuple[str, str], list[str]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.outcome != "equal":
            tables[verdict.outcome, _general(verdict)].append(f"{verdict.file}: {verdict.table}")
    if not tables:
        return []
    lines = ["| outcome | reason | tables | for example |", "|---|---|---|---|"]
    for (outcome, reason), named in sorted(tables.items(), key=lambda item: (OUTCOMES.index(item[0][0]), item[0][1])):
        lines.append(f"| {outcome} | {reason} | {len(named)} | {named[0]} |")
    return [*lines, ""]


def _general(verdict: TableVerdict) -> str:
    """The reason without what differs from table to table, fit for a cell."""
    reason = verdict.reason.replace("\n", " ").replace("|", "\\|")
    reason = re.sub(r"\b[0-9A-F]+/[0-9A-F]+\b", "…", reason).replace(verdict.table, "…")
    reason = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:.+]+", "…", reason)
    return reason[:300]
