"""Keeps what became of each table in the plays of the suites: verdicts while they are played, and counts for the page.

verdicts of a suite ──SuiteResult.keep()──► .tidemark/witnesses/*.json ──Play.of()──► docs/witnesses.json ──► the page
"""

from __future__ import annotations

import json
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import Final

from tests.witnesses.captured_database import TableVerdict

OUTCOMES: Final = ("equal", "repaired", "dropped", "marked", "parked", "differs", "error")
# Those that need neither a person nor a mending.
GOOD: Final = ("equal", "repaired", "dropped")
ORDER: Final = ("regression", "isolation", "subscription", "decoding", "decoding-specs")

# Suite, version, lake, whether there was an event trigger, and which files were chosen.
PlayKey = tuple[str, int, str, bool, str]


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """`lake` is what was merged into, "delta" or "rows"; `part` says of what this is the result, as "1/10". `files`
    are those that were played, `covered` counts what was; `chosen` tells which files were asked for, "" for all."""

    suite: str
    version: int
    lake: str
    part: str
    files: Sequence[str]
    verdicts: Sequence[TableVerdict]
    covered: Mapping[str, int]
    has_trigger: bool = True
    chosen: str = ""

    @property
    def key(self) -> PlayKey:
        return self.suite, self.version, self.lake, self.has_trigger, self.chosen

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(verdict.outcome for verdict in self.verdicts)

    def keep(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        how = f"{self.lake}{'' if self.has_trigger else '-without-trigger'}{self.chosen and f'-{self.chosen}'}"
        name = re.sub(r"[^\w-]+", "-", f"{self.suite}-{self.version}-{how}-{self.part.replace('/', ' of ')}")
        (folder / f"{name[:200]}.json").write_text(json.dumps(asdict(self), indent=1))

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
    return sorted(parts, key=lambda one: (one.key, int(one.part.split("/")[0])))


def kept_in(folder: Path) -> list[SuiteResult]:
    """The same, the parts of each put together."""
    together = groupby(kept_parts(folder), key=lambda one: one.key)
    return [reduce(operator.add, of_one) for _, of_one in together]


@dataclass(frozen=True, slots=True)
class Repairs:
    """How many tables were repaired for one reason, and one of them, as "file: table"."""

    tables: int
    example: str


@dataclass(frozen=True, slots=True)
class Play:
    """What the page has of one play. `files` counts outcomes, `repairs` is by reason, and `set_aside` has each verdict
    that is none of `GOOD`."""

    suite: str
    version: int
    lake: str
    has_trigger: bool
    chosen: str
    covered: Mapping[str, int]
    files: Mapping[str, Mapping[str, int]]
    repairs: Mapping[str, Repairs]
    set_aside: Sequence[TableVerdict]

    @classmethod
    def of(cls, result: SuiteResult) -> Play:
        counts = Counter((verdict.file, verdict.outcome) for verdict in result.verdicts)
        by_file = {file: {one: counts[file, one] for one in OUTCOMES if counts[file, one]} for file in result.files}
        repaired: dict[str, list[str]] = defaultdict(list)
        for verdict in result.verdicts:
            if verdict.outcome == "repaired":
                repaired[_general(verdict)].append(f"{verdict.file}: {verdict.table}")
        repairs = {reason: Repairs(len(tables), tables[0]) for reason, tables in sorted(repaired.items())}
        aside = [replace(v, reason=_general(v)) for v in result.verdicts if v.outcome not in GOOD]
        return cls(*result.key, dict(result.covered), by_file, repairs, aside)

    @classmethod
    def from_json(cls, kept: Mapping[str, object]) -> Play:
        play = cls(**kept)  # type: ignore[arg-type]
        repairs = {reason: Repairs(**one) for reason, one in play.repairs.items()}  # type: ignore[arg-type]
        aside = [TableVerdict(**one) for one in play.set_aside]  # type: ignore[arg-type]
        return replace(play, repairs=repairs, set_aside=aside)

    @property
    def key(self) -> PlayKey:
        return self.suite, self.version, self.lake, self.has_trigger, self.chosen

    @property
    def outcomes(self) -> Counter[str]:
        return sum((Counter(of_file) for of_file in self.files.values()), Counter())


def plays_in(file: Path) -> list[Play]:
    return [Play.from_json(play) for play in json.loads(file.read_text())]


def merged(plays: Iterable[Play], newer: Iterable[Play]) -> list[Play]:
    """A newer play takes the place of the one of the same suite, server, lake, trigger and files. Whole plays, new
    servers and Delta tables are first."""
    by_key = {play.key: play for play in (*plays, *newer)}
    return sorted(by_key.values(), key=_rank)


def _rank(play: Play) -> tuple[int, bool, int, str, bool, str]:
    return ORDER.index(play.suite), bool(play.chosen), -play.version, play.lake, not play.has_trigger, play.chosen


def write_plays(plays: Iterable[Play], file: Path) -> None:
    file.write_text(json.dumps([asdict(play) for play in plays], indent=1, ensure_ascii=False) + "\n")


def _general(verdict: TableVerdict) -> str:
    """The reason without what differs from table to table, fit for a cell."""
    reason = verdict.reason.replace("\n", " ").replace(verdict.table, "…")
    reason = re.sub(r"\b[0-9A-F]+/[0-9A-F]+\b", "…", reason)
    reason = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:.+]+", "…", reason)
    reason = re.sub(r"process \d+, open for \d+ s", "process …, open for … s", reason)
    reason = re.sub(r"[\w.…]+~\d+", "…", reason)
    if verdict.outcome == "repaired":
        reason = re.sub(r'"[^"]+"(, "[^"]+")*', "…", reason.removeprefix("needs backfill: "))
    return reason[:300]
