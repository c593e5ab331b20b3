"""Chooses how one table is merged: `MergeFacts` -> the ways to try, in order, and the reasons against the rest. No I/O.

A merge of a table has up to three steps. Each step has its ways:

    chunks    rows of chunks that are merged:   files, then proof, then spark
    changes   the stream's changes:             driver, then spark
    verify    rows of chunks that are compared: proof, then spark

    files     the chunks' files become files of history and current; rows whose keys have changes go with the changes
    proof     the driver reads keys and columns, and proves that current already has each row: nothing is written
    driver    the driver folds in Arrow and commits through Delta's log, without a Spark job
    spark     Spark computes the rows; every table can be merged in this way

Some facts are only known after files have been read. A way may then raise Declined, with the reason against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from tidemark.wording import counted

Step = Literal["chunks", "changes", "verify"]


class Way(StrEnum):
    FILES = "files"
    PROOF = "proof"
    DRIVER = "driver"
    SPARK = "spark"


class Declined(Exception):
    """A way cannot merge this table after all; the text is the reason."""


@dataclass(frozen=True, slots=True)
class DriverLimits:
    """How much the driver folds of one table at once.

    The limits are the changes' rows, their bytes as staged, their bytes in memory, and the files of current that the
    driver opens. With `is_alone`, only one table is folded at a time: one table per thread of the application would
    need more memory than a driver has besides its JVM.
    """

    rows: int
    staged_bytes: int
    decoded_bytes: int
    files: int
    is_alone: bool


MB: Final = 2**20
FEW: Final = DriverLimits(20_000, 16 * MB, 128 * MB, 1_000, is_alone=False)
MANY: Final = DriverLimits(4_000_000, 256 * MB, 512 * MB, 1_000, is_alone=True)

# Changes that lack a value or move a key: Python walks each of them, with all other changes of its key.
MAX_WALKED: Final = 20_000
# Rows of chunks whose keys changes or current have. Python decides about each; Spark would join all of current.
MAX_TOUCHED: Final = 200_000

# Up to both of these limits Spark does not compile its plans: rows that it reads, and bytes of current.
UNCOMPILED_ROWS: Final = 20_000
UNCOMPILED_BYTES: Final = 64 * MB


@dataclass(frozen=True, slots=True)
class ChangeFacts:
    """Facts about the changes of some batches.

    `unsent` changes lack a value, `moved` ones change the key. `in_shape`: all files have the table's columns.
    `keys_in_shape`: all files have the key's columns under their present names.
    """

    rows: int
    bytes: int
    unsent: int
    moved: int
    truncates: int
    in_shape: bool
    keys_in_shape: bool

    @property
    def are_whole_rows(self) -> bool:
        """Whether each change holds the whole row of its key, in the table's own shape."""
        return self.in_shape and not (self.unsent or self.moved or self.truncates)


@dataclass(frozen=True, slots=True)
class ChunkFacts:
    """Facts about the chunks that are merged, or about those that are compared.

    `claims` and `sweeps` are their numbers. `repairs`: one of the chunks has the purpose `repair`. `in_shape` and
    `keys_in_shape` mean the same as in `ChangeFacts`.
    """

    claims: int = 0
    sweeps: int = 0
    repairs: bool = False
    in_shape: bool = True
    keys_in_shape: bool = True


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts about the table and its two Delta tables.

    `key` is `none`, `comparable` or `floating`. A `floating` key has a type that Spark compares differently from Arrow.
    `writer_needed`: history or current has a feature that only Spark can write; `current_writer_needed`: current has.
    """

    key: Literal["none", "comparable", "floating"]
    has_current: bool
    has_dropped_columns: bool = False
    history_as_expected: bool = True
    current_as_expected: bool = True
    current_has_all_columns: bool = True
    writer_needed: bool = False
    current_writer_needed: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """What `spark.conf` allows. `driver_rows` limits the changes that the driver folds; None means the usual limits."""

    driver_rows: int | None = None
    folds_chunks: bool = True
    adds_files: bool = True
    proves: bool = True


@dataclass(frozen=True, slots=True)
class MergeFacts:
    """All facts that decide how a table is merged.

    `changes` are about the next batches, `changes_read` about these and the older batches that are evidence. `misfit`
    names one of Delta's internal classes or methods that this Spark lacks, "" if it lacks none.
    """

    table: TableFacts
    changes: ChangeFacts
    changes_read: ChangeFacts
    chunks: ChunkFacts = ChunkFacts()
    compared: ChunkFacts = ChunkFacts()
    settings: Settings = Settings()
    misfit: str = ""


@dataclass(frozen=True, slots=True)
class MergeChoice:
    """The ways that are open to each step, in the order in which they are tried, and the reasons against the others.

    `limits` are the driver's limits for these changes, None if the changes exceed all limits.
    """

    ways: dict[Step, tuple[Way, ...]]
    against: Mapping[tuple[Step, Way], str]
    limits: DriverLimits | None

    def is_open(self, step: Step, way: Way) -> bool:
        return way in self.ways.get(step, ())


def choose(facts: MergeFacts) -> MergeChoice:
    """Choose the ways of every step that this merge has."""
    reasons: dict[tuple[Step, Way], str | None] = {}
    if facts.chunks.claims or facts.chunks.sweeps:
        reasons["chunks", Way.FILES] = next(_against_files(facts), None)
        reasons["chunks", Way.PROOF] = next(_against_proof(facts, facts.chunks), None)
        reasons["chunks", Way.SPARK] = None
    reasons["changes", Way.DRIVER] = next(_against_driver(facts), None)
    reasons["changes", Way.SPARK] = None
    if facts.compared.claims or facts.compared.sweeps:
        reasons["verify", Way.PROOF] = next(_against_proof(facts, facts.compared), None)
        reasons["verify", Way.SPARK] = None
    ways: dict[Step, tuple[Way, ...]] = {}
    for (step, way), reason in reasons.items():
        if reason is None:
            ways[step] = (*ways.get(step, ()), way)
    against = {step_and_way: reason for step_and_way, reason in reasons.items() if reason is not None}
    return MergeChoice(ways, against, limits_of(facts.changes, facts.settings))


def limits_of(changes: ChangeFacts, settings: Settings = Settings()) -> DriverLimits | None:
    """The smallest limits within which the driver can fold these changes; None if the changes exceed all limits."""
    for limits in (FEW, MANY):
        rows = limits.rows if settings.driver_rows is None else settings.driver_rows
        if rows > 0 and changes.rows <= rows and changes.bytes <= limits.staged_bytes:
            return limits
    return None


def reads_ahead(facts: MergeFacts) -> bool:
    """Whether a thread reads the changes while the JVM opens the tables.

    It does if the changes are many, have the table's shape, and the driver is likely to fold them.
    """
    limits = limits_of(facts.changes, facts.settings)
    has_chunks = facts.chunks.claims or facts.chunks.sweeps
    if limits is None or not limits.is_alone or has_chunks or not facts.changes.in_shape:
        return False
    return next(_against_driver(facts), None) is None


def against_folding_chunks(facts: MergeFacts, touched: int) -> str | None:
    """The reason why the driver may not fold the chunk rows whose keys have changes; None if it may."""
    return next(_against_folding_chunks(facts, touched), None)


def is_small_for_spark(rows: int, current_bytes: int | None) -> bool:
    """Whether Spark would spend most of its time compiling plans."""
    return rows <= UNCOMPILED_ROWS and current_bytes is not None and current_bytes <= UNCOMPILED_BYTES


# --- reasons against a way; callers use the first one -----------------------------------------------------------------


def _against_driver(facts: MergeFacts) -> Iterator[str]:
    changes = facts.changes
    yield from _against_table(facts)
    if facts.settings.driver_rows is not None and facts.settings.driver_rows <= 0:
        yield "spark.tidemark.driverFoldRows says so"
    if limits_of(changes, facts.settings) is None:
        yield _too_many(changes)
    if changes.unsent + changes.moved > MAX_WALKED:
        yield f"{changes.unsent + changes.moved} changes lack a value or move a key"
    if facts.table.writer_needed:
        yield _WRITER


def _against_files(facts: MergeFacts) -> Iterator[str]:
    table = facts.table
    yield from _against_table(facts)
    if not facts.settings.adds_files:
        yield "spark.tidemark.chunksAsTheyAre says so"
    yield from _against_chunks(facts, facts.chunks)
    if facts.chunks.repairs:
        yield "the chunks repair"
    if table.writer_needed:
        yield _WRITER
    if not table.history_as_expected or not table.current_as_expected:
        yield "history or current has other columns than the source"


def _against_folding_chunks(facts: MergeFacts, touched: int) -> Iterator[str]:
    changes = facts.changes_read
    if not facts.settings.folds_chunks:
        yield "spark.tidemark.driverFoldsChunks says so"
    if touched > MAX_TOUCHED:
        yield f"{counted(touched, 'row')} of chunks were changed meanwhile"
    if facts.table.has_dropped_columns:
        yield "the source dropped a column"
    if not changes.are_whole_rows:
        yield "a change lacks a value, moves a key, or has another shape"
    if changes.bytes > MANY.staged_bytes:
        yield _too_many(changes)


def _against_proof(facts: MergeFacts, chunks: ChunkFacts) -> Iterator[str]:
    yield from _against_table(facts)
    if not facts.settings.proves:
        yield "spark.tidemark.driverProvesEqual says so"
    yield from _against_chunks(facts, chunks)
    if facts.table.current_writer_needed:
        yield _WRITER
    if not facts.table.current_has_all_columns:
        yield "current lacks a column of the source"


def _against_table(facts: MergeFacts) -> Iterator[str]:
    """Reasons against every way but Spark's."""
    if facts.misfit:
        yield f"Delta is another one than Tidemark is made for: {facts.misfit}; its public path is taken"
    if not facts.table.has_current:
        yield "the table has no current"
    if facts.table.key == "none":
        yield "the table has no key"
    if facts.table.key == "floating":
        yield "the key is of a type that Spark compares otherwise"


def _against_chunks(facts: MergeFacts, chunks: ChunkFacts) -> Iterator[str]:
    """Reasons against reading chunks in the driver."""
    if not chunks.claims:
        yield "there is a sweep without chunks"
    if facts.changes_read.truncates:
        yield "the table was truncated meanwhile"
    if not chunks.in_shape:
        yield "a chunk has other columns than the table"
    if not chunks.keys_in_shape or not facts.changes_read.keys_in_shape:
        yield "the key had another name"


def _too_many(changes: ChangeFacts) -> str:
    return f"{counted(changes.rows, 'change')} of {changes.bytes / MB:.1f} MiB are more than the driver folds"


_WRITER: Final = "history or current maps its columns, or has a feature that only Spark writes"
