"""Defines plan.json and result.json of a replay from `history`, below `replays/`: `ReplayPlan`, `ReplayResult`. Pure.

Both are read only during their run; the result is in the Delta tables.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.json_file import JsonFile
from tidemark.strict_json import JsonRecord

# `rebuild` puts what history says in the place of all that current holds; `as_of` makes tables beside the live ones.
Step = Literal["rebuild", "as_of"]


class ReplayPlan(JsonFile, frozen=True):
    """`keys` maps a table's id to the columns of its key, none of a multiset. `generation` is the open one; `moment` an
    LSN or a time with its zone, "" of a rebuild."""

    KIND: ClassVar[str] = "plan of a replay"

    plan: str
    pipeline: str
    lake: str
    step: Step
    keys: dict[str, tuple[str, ...]]
    generation: int
    moment: str
    threads: int


class ReplayedTable(JsonRecord, frozen=True):
    """One table: where it lies, the position it shows and its rows; or why not."""

    table: str
    path: str = ""
    position: str = ""
    rows: int | None = None
    error: ErrorRecord | None = None


class ReplayResult(JsonFile, frozen=True):
    KIND: ClassVar[str] = "result of a replay"

    plan: str
    tables: tuple[ReplayedTable, ...]
