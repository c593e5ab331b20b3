"""Defines plan.json and result.json of a compaction, below `maintenance/`: `UpkeepPlan`, `UpkeepResult`. Pure.

Both are read only during their run; the next run inspects the tables again.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from tidemark.formats.json_file import JsonFile
from tidemark.strict_json import JsonRecord

# `look` compacts what a merge does not rewrite, removes old files, and says which tables' `current` should be
# compacted; `current` compacts that, and nobody may merge the table meanwhile.
Step = Literal["look", "current"]
Kind = Literal["history", "current"]


class UpkeepPlan(JsonFile, frozen=True):
    """`tables` are ids. Files that no version of the last `versions_days` names are removed; `thorough` looks for those
    that no version ever named too."""

    KIND: ClassVar[str] = "plan of a maintenance"

    plan: str
    pipeline: str
    lake: str
    step: Step
    tables: tuple[str, ...]
    threads: int
    versions_days: int
    thorough: bool


class TableUpkeep(JsonRecord, frozen=True):
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


class UpkeepResult(JsonFile, frozen=True):
    KIND: ClassVar[str] = "result of a maintenance"

    plan: str
    tables: tuple[TableUpkeep, ...]
