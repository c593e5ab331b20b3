"""Prints rows of text as a table on a terminal, and as a plain table elsewhere.

A pipe gets neither colours nor lines, and no line is cut to a width. Text from a database is never markup.
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
# A pipe has no width, and rich would take 80 columns for it.
_PLAIN_WIDTH: Final = 10_000


def console() -> Console:
    """Made when it is needed, so that it writes to what stands for standard output then."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=_PLAIN_WIDTH, no_color=True)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = (), severities: Sequence[str] = ()
) -> None:
    """Print a table; columns of `right` are numbers. `severities` colours the second column, row by row."""
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
    """Of a terminal, so that the next text takes the last one's place."""
    console().clear()


def say(*lines: str) -> None:
    """Print lines as they are."""
    for line in lines:
        console().print(Text(line), soft_wrap=True)


def dump(document: Any) -> None:
    """For programs."""
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
    """How long before `now`, both as ISO 8601."""
    if moment is None:
        return "-"
    past = (datetime.fromisoformat(now) - datetime.fromisoformat(moment)).total_seconds()
    return f"{duration(max(0.0, past))} ago"
