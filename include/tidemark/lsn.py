"""Parses and prints PostgreSQL's log sequence number: text "0/16B3748" or 64-bit integer -> `Lsn`.

An LSN is a byte position in the write-ahead log. Three kinds must not be confused (R3): `commit_lsn`, where a commit
record begins; `end_lsn`, the first byte after it; and positions (staged, applied, confirmed), which are end LSNs. A
batch is the half-open range `[start, end)` of commit LSNs (R2): since PostgreSQL 17 one transaction's end LSN can equal
the next one's first LSN, so a batch contains `commit_lsn < end`, never `<=`. Source: PostgreSQL documentation, 8.20
"pg_lsn Type".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_TEXT: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_MAX: Final = 2**64 - 1


class Lsn(int):
    """A position in the write-ahead log, in bytes; orders, compares and subtracts as the integer it is."""

    __slots__ = ()

    def __new__(cls, value: int) -> Lsn:
        if not 0 <= value <= _MAX:
            raise ValueError(f"an LSN has 64 bits, got {value}")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Read PostgreSQL's text form, for example "16/B374D848". Raises ValueError on anything else."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"not an LSN: {text!r} (expected a form like 16/B374D848)")
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    @property
    def hex16(self) -> str:
        """Sixteen hex digits, for folder names that sort in LSN order."""
        return f"{int(self):016X}"

    def __str__(self) -> str:
        return f"{int(self) >> 32:X}/{int(self) & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({str(self)!r})"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


@dataclass(frozen=True, slots=True)
class WalPoint:
    """A position in one history of WAL: after a promotion the same LSN holds other transactions on another timeline."""

    timeline: int
    lsn: Lsn

    def __str__(self) -> str:
        return f"{self.lsn} of timeline {self.timeline}"
