"""Prints rows of text as a table on a terminal, and as a plain table elsewhere.

Output to a pipe has no colours and no rules, and no line is cut to a width. Text from a database is never interpreted
as markup.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidemark.wording import duration

COLOURS: Final = {"red": "bold red", "warning": "yellow", "note": "dim", "ok": "green"}
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# A pipe has no width, and rich would assume 80 columns.
_PLAIN_WIDTH: Final = 10_000


def console() -> Console:
    """A new console for each use, so that it writes to the present standard output."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=_PLAIN_WIDTH, no_color=True)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = (), severities: Sequence[str] = ()
) -> None:
    """Print a table. The columns of `right` are aligned right, for numbers. `severities` colours the second column,
    row by row."""
    out = console()
    drawn = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for column in columns:
        drawn.add_column(column, justify="right" if column in set(right) else "left", overflow="fold")
    for number, row in enumerate(rows):
        style = COLOURS.get(severities[number], "") if severities else ""
        drawn.add_row(*(Text(cell, style=style if place == 1 else "") for place, cell in enumerate(row)))
    if out.is_terminal:
        out.print(drawn)
        return
    with out.capture() as captured:
        out.print(drawn)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def clear() -> None:
    """Clear the terminal, so that the next text replaces the last."""
    console().clear()


def say(*lines: str) -> None:
    """Print lines unchanged."""
    for line in lines:
        console().print(Text(line), soft_wrap=True)


def dump(document: Any) -> None:
    """Print a document as JSON, for programs."""
    print(json.dumps(document, indent=2))


def size(count: int | None) -> str:
    if count is None:
        return "-"
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} {_UNITS[unit]}" if unit == 0 or amount >= 100 else f"{amount:.1f} {_UNITS[unit]}"


def number(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def ago(moment: str | None, now: str) -> str:
    """The time between `moment` and `now`, both in ISO 8601, as "… ago"."""
    if moment is None:
        return "-"
    past = (datetime.fromisoformat(now) - datetime.fromisoformat(moment)).total_seconds()
    return f"{duration(max(0.0, past))} ago"
