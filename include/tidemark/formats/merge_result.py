"""Defines result.json, in which one Spark application records what it did: `PlanResult`. Pure.

It is written once, after the last table; where it is missing, the tables' own positions say what was applied. Pure: no
Spark in here.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from tidemark.formats.compaction_plan import Kind
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.json_file import JsonFile
from tidemark.lsn import Lsn
from tidemark.strict_json import JsonRecord

# More than these are not filled one by one: the whole table is read again.
MAX_HOLE_KEYS = 10_000


class ChunkResult(JsonRecord, frozen=True):
    """What became of a chunk's rows: `inserted` were missing in the target, `repaired` differed from it, `unchanged`
    were there already, `overtaken` gave way to a change that their snapshot did not see. `lost_by_window` counts the
    keys for which such a change was in the WAL before the low watermark: a watermark window alone would have put the
    older row over it; None of a table without a key, whose rows are not told apart.

    Of a chunk that is compared, `inserted` are missing, `repaired` differ or are `extra`, which the target has and the
    source has not; `columns` counts the rows that differ by column. Of a chunk of some columns, `lacking` are rows that
    the target has not, and cannot get from these."""

    backfill: str
    chunk: str
    attempt: str
    read: int
    inserted: int
    repaired: int
    unchanged: int
    overtaken: int
    lost_by_window: int | None
    extra: int = 0
    columns: dict[str, int] = field(default_factory=dict)
    lacking: int = 0


class Holes(JsonRecord, frozen=True):
    """The rows of current with an unchanged value whose base is known nowhere: `columns` maps a column to such rows,
    `keys` holds their keys as texts that PostgreSQL reads, `MAX_HOLE_KEYS` of them at most."""

    columns: dict[str, int]
    keys: tuple[tuple[str, ...], ...]


class DeltaSize(JsonRecord, frozen=True):
    """The size of one of the table's Delta tables behind the merge, by Delta's own counts; `rows` is None where they
    would have to be read from the table's whole log."""

    kind: Kind
    files: int
    bytes: int
    rows: int | None = None


class TableResult(JsonRecord, frozen=True):
    """What the application found or did to one table.

    Positions are `txnVersion`s read back from Delta after the last step, None if the table has none; that of current
    also where an error kept its holes from being counted, so that a later plan counts them. `rows` counts what was
    appended to history and inserted, updated, deleted in current; `swept` maps a backfill to the rows that its sweep
    removed. `holes` is what current holds of them now, None if this plan cannot have changed it. `error` is None if the
    table was merged. The versions are those that carry the positions.
    """

    table: str
    history_lsn: Lsn | None
    current_lsn: Lsn | None
    rows: dict[str, int] = field(default_factory=dict)
    holes: Holes | None = None
    chunks: tuple[ChunkResult, ...] = ()
    swept: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    error: ErrorRecord | None = None
    history_version: int | None = None
    current_version: int | None = None
    way: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    fall_backs: tuple[str, ...] = ()
    sizes: tuple[DeltaSize, ...] = ()


class PlanResult(JsonFile, frozen=True):
    """`noted`: what the plan says of levels stands in `_positions`, but of the tables with an error."""

    KIND: ClassVar[str] = "merge result"

    plan: str
    pipeline: str
    generation: int
    tables: tuple[TableResult, ...]
    noted: bool = False
