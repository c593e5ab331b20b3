"""Formats numbers, durations and times for messages, and finds the name that was probably meant.

"8 min 31 s" is easier to read than 511.04 or PT8M31S.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final

# How alike two table names must be to be taken for one: the schema, which most have in common, counts too.
TABLE_CUTOFF: Final = 0.75

_IRREGULAR: Final = {"has": "have", "is": "are", "was": "were", "it": "they", "needs": "need"}


def duration(seconds: float) -> str:
    """ "0.4 s", "42 s", "8 min 31 s", "2 h 5 min", "3 d 4 h": the two largest units, nothing that is zero."""
    if seconds < 0.95:
        return f"{max(0.0, seconds):.1f} s" if seconds >= 0.05 else "0 s"
    whole = round(seconds)
    units = (("d", whole // 86_400), ("h", whole // 3600 % 24), ("min", whole // 60 % 60), ("s", whole % 60))
    first = next(i for i, (_, count) in enumerate(units) if count)
    return " ".join(f"{count} {unit}" for unit, count in units[first : first + 2] if count)


def moment(time: datetime) -> str:
    """To the second, in UTC, as the logs of Airflow and PostgreSQL have it here."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def counted(count: int, noun: str) -> str:
    """ "1 chunk", "2 chunks", "0 chunks"."""
    return f"{count} {plural(count, noun)}"


def plural(count: int, word: str) -> str:
    """The word as it is beside a number of that many."""
    if count == 1:
        return word
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    return f"{word[:-1]}ies" if word.endswith("y") else f"{word}es" if word.endswith("ch") else f"{word}s"


def closest(text: str, names: Iterable[str], *, taken: Iterable[str] = (), cutoff: float = 0.6) -> str | None:
    """The name that was probably meant, for a "did you mean"; never one that stands there already."""
    close = get_close_matches(text, sorted(set(names) - set(taken)), n=1, cutoff=cutoff)
    return close[0] if close else None
