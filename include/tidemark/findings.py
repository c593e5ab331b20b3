"""Collects the findings of a preflight, each with its remedy -> one `Report`.

Severities, most severe first:

    error     nothing can be captured safely while it holds: the run ends
    table     an error of the tables that it names alone (R6): they are not captured, or stay as they are; the rest
              goes on
    warning   to be corrected; nothing stops
    note      a change that preflight made, or a fact to know
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tidemark.errors import Move, PreflightFailed, PreflightWaits, TidemarkError
from tidemark.names import TableName
from tidemark.wording import counted, duration

Severity = Literal["error", "table", "warning", "note"]

# The consequence of an error of a table. "capture": it is not captured while the error lasts; a captured table leaves,
# because its stream cannot be relied on. "joining": it does not join; a captured table stays, because its staged
# changes are exact. "nothing": no consequence, but a person has to act.
Bars = Literal["capture", "joining", "nothing"]
_SEVERITIES: tuple[Severity, ...] = ("error", "table", "warning", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check, with its remedy.

    - `check` names the check, `move` who must act.
    - `cause` is the error of the library from which the finding was made, None without one.
    - `tables` are the tables of a finding of severity "table", `bars` is its consequence for them.
    """

    severity: Severity
    check: str
    message: str
    remedy: str = ""
    move: Move = Move.FIX_SOURCE
    cause: TidemarkError | None = field(default=None, compare=False, repr=False)
    tables: tuple[TableName, ...] = ()
    bars: Bars = "nothing"

    @classmethod
    def error(cls, check: str, message: str, remedy: str, move: Move = Move.FIX_SOURCE) -> Finding:
        return cls("error", check, message, remedy, move)

    @classmethod
    def warning(cls, check: str, message: str, remedy: str, move: Move = Move.FIX_SOURCE) -> Finding:
        return cls("warning", check, message, remedy, move)

    @classmethod
    def note(cls, check: str, message: str, remedy: str = "") -> Finding:
        return cls("note", check, message, remedy)

    @classmethod
    def of_tables(
        cls,
        check: str,
        tables: Iterable[TableName],
        message: str,
        remedy: str,
        *,
        bars: Bars,
        move: Move = Move.FIX_SOURCE,
    ) -> Finding:
        """An error of these tables alone."""
        return cls("table", check, message, remedy, move, tables=tuple(tables), bars=bars)

    @classmethod
    def of(cls, check: str, cause: TidemarkError, severity: Severity = "error") -> Finding:
        """The finding for an error of the library."""
        happened, remedy = cause.happened.format(**cause.facts), cause.remedy.format(**cause.facts)
        return cls(severity, check, happened, remedy, cause.move, cause)

    def __str__(self) -> str:
        text = f"{self.severity:7}  {self.check}: {sentence(self.message)}"
        return f"{text}\n         -> {sentence(self.remedy)}" if self.remedy else text


@dataclass(frozen=True, slots=True)
class Report:
    """All findings of one preflight, errors first. `str()` is for logs and terminals."""

    pipeline: str
    path: str
    findings: tuple[Finding, ...]
    seconds: float

    @classmethod
    def of(cls, pipeline: str, path: str, findings: Iterable[Finding], seconds: float) -> Report:
        return cls(pipeline, path, tuple(sorted(findings, key=lambda f: _SEVERITIES.index(f.severity))), seconds)

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "error")

    @property
    def table_errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "table")

    def raise_for_errors(self) -> None:
        """Raise the error itself if there is only one and it came from the library. Otherwise raise PreflightWaits if a
        retry may succeed, else PreflightFailed."""
        errors = self.errors
        if not errors:
            return
        if len(errors) == 1 and errors[0].cause is not None:
            raise errors[0].cause
        facts = {
            "pipeline": self.pipeline,
            "count": counted(len(errors), "error"),
            "findings": "\n".join(str(f) for f in (*errors, *self.table_errors)),
        }
        if all(f.move is Move.RETRY for f in errors):
            raise PreflightWaits(**facts)
        raise PreflightFailed(**facts, path=self.path)

    def __str__(self) -> str:
        words = {"error": "error", "table": "error of a table", "warning": "warning", "note": "note"}
        many = {"error": "errors", "table": "errors of single tables", "warning": "warnings", "note": "notes"}
        counts = [(kind, sum(f.severity == kind for f in self.findings)) for kind in _SEVERITIES]
        summary = ", ".join(f"{count} {(words if count == 1 else many)[kind]}" for kind, count in counts if count)
        summary = summary or "nothing to report"
        head = f"preflight of pipeline {self.pipeline}: {summary} ({duration(self.seconds)})"
        return "\n".join([head, *(str(f) for f in self.findings)])


def sentence(text: str) -> str:
    """The text with its full stop, "" without a text."""
    text = text.strip()
    return text if not text or text.endswith((".", ";", "!", "?")) else f"{text}."


def listed(names: Iterable[object], limit: int = 10) -> str:
    """Names for a message: up to `limit` of them, and the number of the others."""
    texts = [str(name) for name in names]
    rest = len(texts) - limit
    return ", ".join(texts if rest <= 0 else [*texts[:limit], f"and {rest} more"])
