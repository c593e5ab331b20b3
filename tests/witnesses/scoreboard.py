"""Renders the verdicts of a suite as a page: one row per file, then each table that is not equal with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.witnesses.regression_suite import EXCLUDED, TableVerdict

OUTCOMES = ("equal", "repaired", "marked", "parked", "differs", "error")


def scoreboard(verdicts: Sequence[TableVerdict], version: int) -> str:
    """The page in Markdown."""
    files = dict.fromkeys(verdict.file for verdict in verdicts)
    counts = Counter((verdict.file, verdict.outcome) for verdict in verdicts)
    in_all = Counter(verdict.outcome for verdict in verdicts)
    lines = [
        f"# PostgreSQL's regression tests, captured from PostgreSQL {version}",
        "",
        "| file | " + " | ".join(OUTCOMES) + " |",
        "|---|" + "---|" * len(OUTCOMES),
        *(
            f"| {file} | " + " | ".join(str(counts[file, outcome] or "") for outcome in OUTCOMES) + " |"
            for file in files
        ),
        "| **all** | " + " | ".join(str(in_all[outcome]) for outcome in OUTCOMES) + " |",
        "",
        "## Tables that are not equal",
        "",
        *(f"- {v.file}, `{v.table}`: {v.outcome}: {v.reason}" for v in verdicts if v.outcome != "equal"),
        "",
        "## Files that are not played",
        "",
        *(f"- {name}: {reason}" for name, reason in EXCLUDED.items()),
    ]
    return "\n".join(lines) + "\n"
