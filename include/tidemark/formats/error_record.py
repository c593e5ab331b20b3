"""An error of one table as it travels: application -> result.json -> ledger -> messages and status.

The exception itself stays in the process that raised it; this is what the others need of it. `errors.TidemarkError`
makes one of itself. Pure.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


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
