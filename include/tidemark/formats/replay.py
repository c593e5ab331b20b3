"""What one Spark application shall make anew from `history`, and what it made: `ReplayPlan` <-> plan.json,
`ReplayResult` <-> result.json beside it, below `replays/`. Pure: no Spark in here.

Neither is read again once its run is over; what was made stands in the Delta tables.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tidemark.formats import format_version
from tidemark.formats.error_record import ErrorRecord

FORMAT = 1

# `rebuild` puts what history says in the place of all that current holds; `as_of` makes tables beside the live ones.
Step = Literal["rebuild", "as_of"]


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """`keys` maps a table's id to the columns of its key, none of a multiset. `generation` is the open one; `moment` an
    LSN or a time with its zone, "" of a rebuild."""

    plan: str
    pipeline: str
    lake: str
    step: Step
    keys: dict[str, tuple[str, ...]]
    generation: int
    moment: str
    threads: int

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> ReplayPlan:
        raw = _checked(text)
        return cls(**{**raw, "keys": {table: tuple(key) for table, key in raw["keys"].items()}})


@dataclass(frozen=True, slots=True)
class Replayed:
    """One table: where it lies, the position it shows and its rows; or why not."""

    table: str
    path: str = ""
    position: str = ""
    rows: int | None = None
    error: ErrorRecord | None = None


@dataclass(frozen=True, slots=True)
class ReplayResult:
    plan: str
    tables: tuple[Replayed, ...]

    def to_json(self) -> str:
        tables = [{**asdict(t), "error": None if t.error is None else t.error.to_json()} for t in self.tables]
        return json.dumps({"format": FORMAT, "plan": self.plan, "tables": tables}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> ReplayResult:
        raw = _checked(text)
        return cls(
            raw["plan"],
            tuple(
                Replayed(**{**t, "error": None if t["error"] is None else ErrorRecord.from_json(t["error"])})
                for t in raw["tables"]
            ),
        )


def _checked(text: str) -> dict[str, Any]:
    """Raises ValueError if the text is of another format, FormatIsNewer if a newer version wrote it."""
    raw: dict[str, Any] = json.loads(text)
    format_version.require("file of a replay", raw.pop("format", None), oldest=FORMAT, newest=FORMAT)
    return raw
