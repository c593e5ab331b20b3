"""Defines plan.json and result.json of a compaction, below `maintenance/`: `CompactionPlan`, `CompactionResult`. Pure.

Both are read only during their run; the next run inspects the tables again.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from tidemark.formats.json_file import JsonFile
from tidemark.strict_json import JsonRecord

# `look` compacts `history`, removes old files of both Delta tables, and reports the tables whose `current` is due.
# `current` compacts `current`; the plan's task holds the tables' leases meanwhile.
Step = Literal["look", "current"]
Kind = Literal["history", "current"]


class CompactionPlan(JsonFile, frozen=True):
    """`tables` are ids. Files that no version of the last `versions_days` contains are removed. With `thorough` so are
    files that no version ever contained."""

    KIND: ClassVar[str] = "plan of a maintenance"

    plan: str
    pipeline: str
    lake: str
    step: Step
    tables: tuple[str, ...]
    threads: int
    versions_days: int
    thorough: bool


class TableCompaction(JsonRecord, frozen=True):
    """One Delta table: its files before and after, and whether it was compacted.

    - `due`: it should be compacted by the step `current`, under the table's lease.
    - `left` is the reason why something was not done, "" if all was done.
    - `bytes` and `rows` are the table's size after the step, None if it could not be read.
    """

    table: str
    kind: Kind
    files_before: int
    files_after: int
    compacted: bool = False
    due: bool = False
    left: str = ""
    bytes: int | None = None
    rows: int | None = None


class CompactionResult(JsonFile, frozen=True):
    KIND: ClassVar[str] = "result of a maintenance"

    plan: str
    tables: tuple[TableCompaction, ...]
