"""tests/scenarios/*.sql -> `Scenario`: what happens at the source, which steps the pipeline takes, what is expected.

tests/scenarios/README.md has the grammar. Whatever looks like a directive and is none is an error here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.support import failpoint_names

STEPS = (
    "run",
    "drain",
    "merge",
    "confirm",
    "plan",
    "read",
    "end backfill",
    "backfill wanted",
    "backfill again",
    "verify",
    "repair",
    "retry",
)
CRASH = "crash at "
EXPECTATIONS = (
    "history",
    "current",
    "no current",
    "columns",
    "tables",
    "parked",
    "paused",
    "needs backfill",
    "marked",
    "merging",
    "filtered",
    "backfill open",
    "report",
    "differs",
    "converted",
    "batches at least",
    "batches",
    "spark not started",
    "confirmed everything",
    "confirmed less than staged",
    "confirmed up to the batch before",
    "nowhere in the lake",
)

_DIRECTIVE = re.compile(
    r"-- (capture|leave out|mask|target|bound|chunk rows|mode|session|at|hang|release|in the lake|pause|resume|step"
    r"|expect): (.*)"
)
_ROW = re.compile(r"--   (.*)")
_DETAIL = re.compile(r"(?P<subject>[^(]*?)\s*(?:\((?P<detail>.*)\))?")


@dataclass(frozen=True, slots=True)
class Statement:
    """`at` is the point of the next step at which it runs, "" where it runs before that."""

    line: int
    session: str
    sql: str
    at: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    """The session's transaction hangs in its commit, or is released from it."""

    line: int
    session: str
    hangs: bool
    at: str = ""


@dataclass(frozen=True, slots=True)
class ByHand:
    """SQL that Spark runs; {current note} is the Delta table."""

    line: int
    sql: str


@dataclass(frozen=True, slots=True)
class Pause:
    """A person pauses the table, or resumes it."""

    line: int
    table: str
    ends: bool


@dataclass(frozen=True, slots=True)
class Step:
    """`refused` is the pattern of the finding with which preflight shall refuse the run, `crash_at` the failpoint at
    which the task is killed, or was killed that is retried."""

    line: int
    name: str
    refused: str | None = None
    crash_at: str = ""


@dataclass(slots=True)
class Expectation:
    """For example "history", table "note", detail "_op, id", rows [["insert", "1"]]; rows is None where none may
    follow.
    """

    line: int
    kind: str
    table: str
    detail: str
    rows: list[list[str]] = field(default_factory=list)


@dataclass(slots=True)
class Scenario:
    name: str
    description: str = ""
    capture: tuple[str, ...] = ("*",)
    leave_out: dict[str, list[str]] = field(default_factory=dict)
    mask: dict[str, dict[str, Literal["null", "sha256"]]] = field(default_factory=dict)
    target: dict[str, dict[str, str]] = field(default_factory=dict)
    bounds: dict[str, int] = field(default_factory=dict)
    alone: bool = False
    chunk_rows: int | None = None
    mode: Literal["chunks", "exported_snapshot"] = "chunks"
    acts: list[Statement | Commit | ByHand | Pause | Step | Expectation] = field(default_factory=list)

    @property
    def steps(self) -> list[Step]:
        return [act for act in self.acts if isinstance(act, Step)]

    @property
    def crashes(self) -> list[str]:
        """The failpoints at which tasks are killed, in order."""
        return [step.crash_at for step in self.steps if step.crash_at and step.name != "retry"]

    @property
    def needs_its_own_pipeline(self) -> bool:
        return (
            self.alone
            or bool(self.bounds)
            or any(s.refused or s.crash_at or s.name in ("merge", "confirm") for s in self.steps)
        )


class NotAScenario(Exception):
    """The file says something that the format does not know; the message begins with file and line."""


def read(path: Path) -> Scenario:
    """Raises `NotAScenario` for a directive, step or expectation that is none: a typing error must not pass as a
    comment.
    """
    reader = _Reader(path, Scenario(path.stem))
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        reader.take(number, line.rstrip())
    return reader.close()


@dataclass(slots=True)
class _Reader:
    path: Path
    scenario: Scenario
    session: str = "main"
    at: str = ""
    statement: list[str] = field(default_factory=list)
    began: int = 0

    def take(self, number: int, line: str) -> None:
        acts = self.scenario.acts
        if self.statement:
            self.sql(number, line)
        elif not line:
            return
        elif not line.startswith("--"):
            self.began = number
            self.sql(number, line)
        elif row := _ROW.fullmatch(line):
            if not acts or not isinstance(acts[-1], Expectation):
                raise self.wrong(number, "a row without an expectation")
            acts[-1].rows.append([cell.strip() for cell in row[1].split("|")])
        elif line == "-- alone":
            self.scenario.alone = True
        elif directive := _DIRECTIVE.fullmatch(line):
            self.directive(number, directive[1], directive[2])
        elif re.match(
            r"-- ?(step|expect|session|capture|mask|bound|target|leave|at:|hang|release|in the|pause|resume|mode"
            r"|chunk r)",
            line,
        ):
            raise self.wrong(number, f"neither a comment nor a directive: {line}")
        elif not acts:
            self.scenario.description += line.removeprefix("--").strip() + " "

    def sql(self, number: int, line: str) -> None:
        self.statement.append(line)
        whole = "\n".join(self.statement)
        if line.endswith(";") and whole.count("$$") % 2 == 0:
            self.scenario.acts.append(Statement(self.began, self.session, whole, self.at))
            self.statement = []

    def directive(self, number: int, name: str, text: str) -> None:
        scenario = self.scenario
        match name:
            case "capture":
                scenario.capture = tuple(pattern.strip() for pattern in text.split(","))
            case "leave out":
                table, column = text.split(".")
                scenario.leave_out.setdefault(table, []).append(column)
            case "mask":
                table, column, mask = re.split(r"[. ]", text)
                scenario.mask.setdefault(table, {})[column] = "sha256" if mask == "sha256" else "null"
            case "target":
                table, column, type_ = re.split(r"[. ]", text, maxsplit=2)
                scenario.target.setdefault(table, {})[column] = type_
            case "bound":
                option, value = text.split("=")
                scenario.bounds[option.strip()] = int(value)
            case "chunk rows":
                scenario.chunk_rows = int(text)
            case "mode":
                scenario.mode = "exported_snapshot" if text == "exported_snapshot" else "chunks"
            case "session":
                self.session = text
            case "at":
                self.at = self.point(number, text)
            case "hang" | "release":
                scenario.acts.append(Commit(number, text, name == "hang", self.at))
            case "in the lake":
                scenario.acts.append(ByHand(number, text))
            case "pause" | "resume":
                scenario.acts.append(Pause(number, text, name == "resume"))
            case "step":
                self.at = ""
                scenario.acts.append(self.step(number, text))
            case "expect":
                scenario.acts.append(self.expectation(number, text))

    def point(self, number: int, text: str) -> str:
        if not re.fullmatch(r"(low|high) \w+|horizon|export", text):
            raise self.wrong(number, f"unknown point {text!r}; known are low, high (of a table), horizon, export")
        return text

    def step(self, number: int, text: str) -> Step:
        if text.startswith(CRASH):
            return self.crash(number, text.removeprefix(CRASH))
        refused = re.fullmatch(r"run, refused \((.*)\)", text)
        if refused is None and text not in STEPS:
            raise self.wrong(number, f"unknown step {text!r}; known are {', '.join(STEPS)}")
        if text == "retry":
            return Step(number, text, crash_at=self.last_crash(number))
        return Step(number, "run", refused[1]) if refused else Step(number, text)

    def crash(self, number: int, failpoint: str) -> Step:
        if failpoint not in failpoint_names.NAMES:
            raise self.wrong(number, f"unknown failpoint {failpoint!r}; known are {', '.join(failpoint_names.NAMES)}")
        return Step(number, CRASH.strip(), crash_at=failpoint)

    def last_crash(self, number: int) -> str:
        killed = [step.crash_at for step in self.scenario.steps if step.crash_at]
        if not killed:
            raise self.wrong(number, "a retry of no task: none was killed before")
        return killed[-1]

    def expectation(self, number: int, text: str) -> Expectation:
        for kind in EXPECTATIONS:
            if text == kind or text.startswith(kind + " "):
                match = _DETAIL.fullmatch(text.removeprefix(kind).strip())
                assert match is not None
                return Expectation(number, kind, match["subject"] or "", match["detail"] or "")
        raise self.wrong(number, f"unknown expectation {text!r}; known are {', '.join(EXPECTATIONS)}")

    def wrong(self, number: int, what: str) -> NotAScenario:
        return NotAScenario(f"{self.path.name}:{number}: {what}")

    def close(self) -> Scenario:
        if self.statement:
            raise self.wrong(self.began, "this statement does not end")
        if not self.scenario.steps:
            raise self.wrong(1, "a scenario without a step")
        if not self.scenario.description:
            raise self.wrong(1, "a scenario without a first line that says what it is")
        return self.scenario


def split_columns(text: str) -> list[str]:
    """'a, left(b, 2), _text['x']' -> the expressions between the commas that stand outside brackets and quotes."""
    texts, depth, quote = [""], 0, ""
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c in "'`\"":
            quote = c
        elif c in "([":
            depth += 1
        elif c in ")]":
            depth -= 1
        elif c == "," and depth == 0:
            texts.append("")
            continue
        texts[-1] += c
    return [text_of_column.strip() for text_of_column in texts if text_of_column.strip()]
