"""What one Spark application shall do for Delta tables, and what it did: `UpkeepPlan` <-> plan.json, `UpkeepResult` <->
result.json beside it, below `maintenance/`. Pure: no Spark in here.

Neither is read again once its run is over: what the tables need is asked of the tables.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tidemark.formats import format_version

FORMAT = 1
OLDEST = 1

# `look` compacts what a merge does not rewrite, removes old files, and says which tables' `current` should be
# compacted; `current` compacts that, and nobody may merge the table meanwhile.
Step = Literal["look", "current"]
Kind = Literal["history", "current"]


@dataclass(frozen=True, slots=True)
class UpkeepPlan:
    """`tables` are ids. Files that no version of the last `versions_days` names are removed; `thorough` looks for those
    that no version ever named too."""

    plan: str
    pipeline: str
    lake: str
    step: Step
    tables: tuple[str, ...]
    threads: int
    versions_days: int
    thorough: bool

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> UpkeepPlan:
        raw = _checked(text)
        return cls(**{**raw, "tables": tuple(raw["tables"])})


@dataclass(frozen=True, slots=True)
class Upkept:
    """One Delta table: its files before and after, and whether it was compacted. `due`: it should be, under the table's
    lease. `left` is why something was not done, "" if all was. `bytes` and `rows` are of the table as it was left,
    None if that could not be seen."""

    table: str
    kind: Kind
    files_before: int
    files_after: int
    compacted: bool = False
    due: bool = False
    left: str = ""
    bytes: int | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class UpkeepResult:
    plan: str
    tables: tuple[Upkept, ...]

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> UpkeepResult:
        raw = _checked(text)
        return cls(raw["plan"], tuple(Upkept(**table) for table in raw["tables"]))


def _checked(text: str) -> dict[str, Any]:
    """Raises ValueError if the text is of another format, FormatIsNewer if a newer version wrote it."""
    raw: dict[str, Any] = json.loads(text)
    format_version.require("file of a maintenance", raw.pop("format", None), oldest=OLDEST, newest=FORMAT)
    return raw
