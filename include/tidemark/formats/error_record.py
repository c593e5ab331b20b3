"""An error as it travels: application -> result.json -> ledger -> messages and status.

The exception itself stays in the process that met it; this is what the others need of it. `errors.TidemarkError` makes
both of itself. Pure.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """`kind` is the name of a leaf of `errors`, `move` the value of its `Move`, `message` its text, remedy included and
    no row's value."""

    kind: str
    move: str
    message: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, str]) -> ErrorRecord:
        """Raises TypeError if it is none."""
        return cls(**raw)


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """An error that another process shall raise: `kind` as above, `facts` what its message names, as text."""

    kind: str
    facts: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> ErrorFacts:
        """Raises TypeError if it is none."""
        return cls(**raw)
