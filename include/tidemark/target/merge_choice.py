"""Chooses how one table is merged: `MergeFacts` -> the ways to try, in order, and why not the others. Pure.

A merge of a table has up to three steps. Each step has its ways:

    chunks    rows of chunks that are merged:   files, then proof, then spark
    changes   the stream's changes:             driver, then spark
    verify    rows of chunks that are compared: proof, then spark

    files     the chunks' files become files of history and current; rows that need a closer look go with the changes
    proof     the driver reads keys and columns, and proves that current has each row already: nothing is written
    driver    the driver folds in Arrow and commits through Delta's log, without a Spark job
    spark     Spark computes it; every table can be merged in this way

Some facts are only known after reading. A way may then raise Declined, which is the reason against it.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    """A way turned out not to be open to the table; the text is the reason."""


@dataclass(frozen=True, slots=True)
class DriverLimits:
    """What the driver folds of one table at once: rows and bytes of changes as they are staged, their bytes in memory,
    and files of current that it opens. `is_alone`: one table at a time, since as many as the application has threads
    need more memory than a driver has beside its JVM."""

    rows: int
    staged_bytes: int
    decoded_bytes: int
    files: int
    is_alone: bool


MB: Final = 2**20
FEW: Final = DriverLimits(20_000, 16 * MB, 128 * MB, 1_000, is_alone=False)
MANY: Final = DriverLimits(4_000_000, 256 * MB, 512 * MB, 1_000, is_alone=True)

# Changes that lack a value or move a key: each of them is walked in Python, with all others of its key.
MAX_WALKED: Final = 20_000
# Rows of chunks of a first load that are not added as they are.
MAX_TOUCHED: Final = 20_000
# Changes that come with chunks whose files are added.
MAX_CHANGES_OF_FILES: Final = 200_000

# Up to both of these Spark's plans are not compiled: rows that it reads, and bytes of current.
UNCOMPILED_ROWS: Final = 20_000
UNCOMPILED_BYTES: Final = 64 * MB


@dataclass(frozen=True, slots=True)
class ChangeFacts:
    """Of the changes of some batches: their number and staged bytes, how many lack a value, move a key or truncate, and
    whether all files have the table's shape and the key under its name."""

    rows: int
    bytes: int
    unsent: int
    moved: int
    truncates: int
    in_shape: bool
    keys_in_shape: bool

    @property
    def are_whole_rows(self) -> bool:
        """Whether each change is its key's whole row, in the table's own shape."""
        return self.in_shape and not (self.unsent or self.moved or self.truncates)


@dataclass(frozen=True, slots=True)
class ChunkFacts:
    """Of chunks that are merged, or of those that are compared: their number, whether one repairs, and whether their
    files have the table's columns and the key under their names."""

    claims: int = 0
    sweeps: int = 0
    repairs: bool = False
    in_shape: bool = True
    keys_in_shape: bool = True


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts of the table and its two Delta tables. `key` is `none`, `comparable`, or `floating`: of types that Spark
    compares otherwise than Arrow. `writer_needed` names a feature of history or current that the driver cannot write.
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
    """What `spark.conf` allows: `driver_rows` bounds the changes that the driver folds, None: as usual."""

    driver_rows: int | None = None
    folds_chunks: bool = True
    adds_files: bool = True
    proves: bool = True


@dataclass(frozen=True, slots=True)
class MergeFacts:
    """`changes` are those of the batches that come next, `changes_read` those and the older ones that are evidence.
    `misfit`: what of Delta's own classes this Spark lacks, "" if it has all."""

    table: TableFacts
    changes: ChangeFacts
    changes_read: ChangeFacts
    chunks: ChunkFacts = ChunkFacts()
    compared: ChunkFacts = ChunkFacts()
    settings: Settings = Settings()
    misfit: str = ""


@dataclass(frozen=True, slots=True)
class Against:
    """A reason against a way of a step."""

    step: Step
    way: Way
    reason: str


@dataclass(frozen=True, slots=True)
class MergeChoice:
    """The ways that are open to each step, in the order in which they are tried, and the reasons against the others.
    `limits` are those of the driver, None if it may not fold the changes."""

    ways: dict[Step, tuple[Way, ...]]
    against: tuple[Against, ...]
    limits: DriverLimits | None

    def is_open(self, step: Step, way: Way) -> bool:
        return way in self.ways.get(step, ())


def choose(facts: MergeFacts) -> MergeChoice:
    """The ways of every step that the merge has."""
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
    against = tuple(Against(step, way, reason) for (step, way), reason in reasons.items() if reason is not None)
    return MergeChoice(ways, against, limits_of(facts.changes, facts.settings))


def limits_of(changes: ChangeFacts, settings: Settings = Settings()) -> DriverLimits | None:
    """Those within which the driver can fold these changes; None if they are beyond all."""
    for limits in (FEW, MANY):
        rows = limits.rows if settings.driver_rows is None else settings.driver_rows
        if rows > 0 and changes.rows <= rows and changes.bytes <= limits.staged_bytes:
            return limits
    return None


def reads_ahead(facts: MergeFacts) -> bool:
    """Whether the changes are read on a thread while the JVM opens the tables: where they are many, in the table's
    shape, and the driver is likely to fold them."""
    limits = limits_of(facts.changes, facts.settings)
    has_chunks = facts.chunks.claims or facts.chunks.sweeps
    if limits is None or not limits.is_alone or has_chunks or not facts.changes.in_shape:
        return False
    return next(_against_driver(facts), None) is None


def against_folding_chunks(facts: MergeFacts, touched: int) -> str | None:
    """Why the driver does not fold the rows of chunks whose keys changes have, None if it may."""
    return next(_against_folding_chunks(facts, touched), None)


def is_small_for_spark(rows: int, current_bytes: int | None) -> bool:
    """Whether compiling Spark's plans would be most of the work."""
    return rows <= UNCOMPILED_ROWS and current_bytes is not None and current_bytes <= UNCOMPILED_BYTES


# --- the reasons, the first of which counts ---------------------------------------------------------------------------


def _against_driver(facts: MergeFacts) -> Iterator[str]:
    changes, table = facts.changes, facts.table
    yield from _against_internals(facts)
    if not table.has_current:
        yield "the table has no current"
    if facts.settings.driver_rows is not None and facts.settings.driver_rows <= 0:
        yield "spark.tidemark.driverFoldRows says so"
    yield from _against_keys(table)
    if limits_of(changes, facts.settings) is None:
        yield _too_many(changes)
    if changes.unsent + changes.moved > MAX_WALKED:
        yield f"{changes.unsent + changes.moved} changes lack a value or move a key"
    yield from _against_writing(table)


def _against_files(facts: MergeFacts) -> Iterator[str]:
    table, chunks = facts.table, facts.chunks
    yield from _against_internals(facts)
    if not facts.settings.adds_files:
        yield "spark.tidemark.chunksAsTheyAre says so"
    if not chunks.claims:
        yield "there is a sweep without chunks"
    if not table.has_current:
        yield "the table has no current"
    yield from _against_keys(table)
    if chunks.repairs:
        yield "the chunks repair"
    if facts.changes_read.truncates:
        yield "the table was truncated meanwhile"
    if facts.changes.rows > MAX_CHANGES_OF_FILES:
        yield f"{counted(facts.changes.rows, 'change')} come with the chunks"
    yield from _against_shape(facts, chunks)
    yield from _against_writing(table)
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
    table = facts.table
    yield from _against_internals(facts)
    if not facts.settings.proves:
        yield "spark.tidemark.driverProvesEqual says so"
    if not chunks.claims:
        yield "there is a sweep without chunks"
    if not table.has_current:
        yield "the table has no current"
    yield from _against_keys(table)
    if facts.changes_read.truncates:
        yield "the table was truncated meanwhile"
    yield from _against_shape(facts, chunks)
    if table.current_writer_needed:
        yield _WRITER
    if not table.current_has_all_columns:
        yield "current lacks a column of the source"


def _against_internals(facts: MergeFacts) -> Iterator[str]:
    if facts.misfit:
        yield f"Delta is another one than Tidemark is made for: {facts.misfit}; its public path is taken"


def _against_keys(table: TableFacts) -> Iterator[str]:
    if table.key == "none":
        yield "the table has no key"
    if table.key == "floating":
        yield "the key is of a type that Spark compares otherwise"


def _against_shape(facts: MergeFacts, chunks: ChunkFacts) -> Iterator[str]:
    if not chunks.in_shape:
        yield "a chunk has other columns than the table"
    if not chunks.keys_in_shape or not facts.changes_read.keys_in_shape:
        yield "the key had another name"


def _against_writing(table: TableFacts) -> Iterator[str]:
    if table.writer_needed:
        yield _WRITER


def _too_many(changes: ChangeFacts) -> str:
    return f"{counted(changes.rows, 'change')} of {changes.bytes / MB:.1f} MiB are more than the driver folds"


_WRITER: Final = "history or current maps its columns, or has a feature that only Spark writes"
