"""Adds the files of a first load's chunks to history and current; a deletion vector masks the rows that are not new.

    chunk files ─┬─ rows whose key a change or current has ─► `chunk_fold`, or copied as chunks ─► `ChunkChanges`
                 └─ copies of the files, these rows masked ─► history: `read` rows at the watermark     (AddFile)
                                                           ─► current: rows with new keys               (AddFile)

The target lacks a chunk's row if no row of current has its key, and no change of the plan or of its evidence has it
(R7). The verdict of such a row is "inserted" whatever its values are, so it is never decoded. The pages of the file are
copied, and columns with one value each are added: those of the high watermark (`parquet_footer`). A deletion vector
masks all other rows in the copies. They are merged as any chunk's rows.

There are two ways to show that no row of current has a key. Either current's files are chunks of the same backfill that
were added here before, whose ranges do not overlap. Or the keys of current are read and compared. If they are too many,
the driver holds the chunks' keys in memory, and reads current's in pieces. Masking too many rows is safe, masking too
few is not.

A sweep removes nothing if the key of every row of current is in a chunk of the backfill, or in a change that the sweep
spares. Otherwise `first_load` raises Declined.

Files are copied, not referenced: staging has its own retention, and VACUUM manages only files in the table's folder.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace
from numpy.typing import NDArray
from pyspark.sql import DataFrame

from tidemark.errors import StagedFileDiffers
from tidemark.formats.columns import chunk_schema
from tidemark.formats.manifest import Claim, StagedFile, Sweep
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.formats.merge_result import ChunkResult
from tidemark.target.chunks import chunk_keys
from tidemark.target.chunks.chunk_input import (
    NextBatches,
    TouchedRows,
    may_share_keys,
    watermark_time,
)
from tidemark.target.delta import data_files, delta_tables, hadoop_files, parquet_footer
from tidemark.target.delta.data_files import DataFile
from tidemark.target.delta.delta_tables import Bounds, PinnedTable, WrittenFile
from tidemark.target.delta.hadoop_files import Body
from tidemark.target.delta.parquet_footer import ConstantColumns, Footer
from tidemark.target.driver import driver_memory
from tidemark.target.driver.change_reader import StagedTable
from tidemark.target.driver.key_set import KeySet
from tidemark.target.driver.target_rows import TargetRows, group_bounds
from tidemark.target.merge_choice import Declined
from tidemark.wording import counted

log = logging.getLogger(__name__)

MAX_KEYS: Final = 5_000_000  # of changes and current, held in memory to be compared with the chunks' keys
FEW_KEYS: Final = 500_000  # of changes and current, which several tables may hold at the same time
GROUP_ROWS: Final = 2_000_000  # of chunks whose keys are looked up together, unless a single file has more
MAX_CHANGES: Final = 1_000_000  # of the plan; for Spark's way their keys come to the driver as well
MAX_ALL_CHANGES: Final = 5_000_000  # of plan and evidence
MAX_SOUGHT_BYTES: Final = 256 * 2**20  # of the keys of the plan's changes and of masked rows
MAX_UNSPARED: Final = 5_000_000  # rows of current that no change spares of a sweep, before the chunks are looked at
MAX_PRESENT: Final = 20_000  # rows of chunks that are all there already; a proof is cheaper for more of them
MAX_MASKED: Final = 1_000_000  # masked rows of chunks
MAX_MASKED_BYTES: Final = 256 * 2**20  # of the masked rows, decoded
MAX_FILES: Final = 10_000  # of current
FILE_BYTES: Final = 128 * 2**20  # an added file of this size takes no further chunk
MAX_TAGGED: Final = 64  # chunks of one added file

# Tags of an added file in Delta's log.
BACKFILL_TAG: Final = "tidemark.backfill"
RANGES_TAG: Final = "tidemark.ranges"  # each range with the attempt that read it


# A chunk -> the columns that have one value in all of its rows.
Facts = Callable[[Claim], Mapping[str, pa.Scalar]]


@dataclass(slots=True)
class _LoadedFile:
    """One file of a claimed chunk.

    `footer` locates its pages, `bounds` has the least and the greatest value of each integer column of its key.
    `masked` has the numbers of the rows that must not be added with the file, `rows` those rows.
    """

    claim: Claim
    file: StagedFile
    footer: Footer
    bounds: dict[str, tuple[int, int]]
    masked: pa.Array = field(default_factory=lambda: pa.array([], pa.uint64()))
    rows: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class FirstLoad:
    """A first load that is ready to be committed.

    `target` has found the rows of current that have keys of the masked rows or of the changes. `overlapping_files` are
    the files of current that may have keys of the chunks.
    """

    table: StagedTable
    next_batches: NextBatches
    files: Sequence[_LoadedFile]
    target: TargetRows
    overlapping_files: Sequence[DataFile]

    @property
    def rows(self) -> int:
        """The number of chunk rows that are added with their files."""
        return sum(file.file.rows for file in self.files) - self.masked

    @property
    def masked(self) -> int:
        """The number of chunk rows that are masked in their files."""
        return sum(len(file.masked) for file in self.files)

    def touched(self) -> TouchedRows:
        """The masked rows, for `chunk_fold`."""
        rows = [(file.claim, file.rows) for file in self.files if file.rows is not None]
        return TouchedRows(self.table, self.next_batches, self.target, rows)

    def remaining_batches(self) -> list[PlannedBatch]:
        """The plan's batches without sweeps, with chunks that have only the masked rows.

        The masked rows are written to chunk files in the plan's scratch folder.
        """
        claims = {claim.chunk: self._remaining_claim(claim) for claim in self.next_batches.claims}
        return [
            replace(b, claims=tuple(claims[c.chunk] for c in b.claims if claims[c.chunk].rows), sweeps=())
            for b in self.next_batches.batches
        ]

    def _remaining_claim(self, claim: Claim) -> Claim:
        copies = []
        for file in self.files:
            if file.claim is claim and file.rows is not None:
                sink = io.BytesIO()
                pq.write_table(file.rows, sink, compression="zstd", compression_level=1)
                content = sink.getvalue()
                folder = f"{self.next_batches.scratch}/{claim.chunk}-{claim.attempt}"
                name = hadoop_files.write_new(self.table.session, f"{self.table.lake}/{folder}", content)
                sha256 = hashlib.sha256(content).hexdigest()
                version = file.file.schema_version
                copies.append(StagedFile(f"{folder}/{name}", len(file.masked), len(content), sha256, version))
        return replace(claim, rows=sum(copy.rows for copy in copies), files=tuple(copies))

    def current_rows(self) -> DataFrame | None:
        """The rows of current whose keys the chunks may have, None if there are none."""
        if not self.overlapping_files:
            return None
        return delta_tables.rows_of_files(
            self.table.session, self.target.current, [file.added for file in self.overlapping_files]
        )

    def check(self) -> None:
        """Build the new footers once before anything is written. Raises UnsupportedParquet if that is not possible."""
        for group in self._groups():
            parquet_footer.joined(_parts(group, self._of_commit), frozenset({"_text"}))

    def files_of_history(self, history: PinnedTable) -> list[WrittenFile]:
        """Write the chunks' files with the columns of `read` rows into history's folder, still to be committed.

        Raises StagedFileDiffers.
        """

        def facts(claim: Claim) -> dict[str, pa.Scalar]:
            return {
                **self._of_commit(claim),
                "_generation": pa.scalar(self.next_batches.generation, pa.int32()),
                "_ordinal": pa.scalar(0, pa.int64()),
                "_op": pa.scalar("read", pa.string()),
            }

        return [self._write(history, group, facts, frozenset()) for group in self._groups()]

    def files_of_current(self) -> list[WrittenFile]:
        """Write the same rows to files in current's folder. Raises StagedFileDiffers."""
        text = frozenset({"_text"})
        return [self._write(self.target.current, group, self._of_commit, text) for group in self._groups()]

    def results(self, of_masked: Iterable[ChunkResult]) -> tuple[ChunkResult, ...]:
        """The result of each chunk: the rows added with its files, plus `of_masked`, the results of the masked rows."""
        results = {(r.backfill, r.chunk, r.attempt): r for r in of_masked}
        combined = []
        for claim in self.next_batches.claims:
            added_rows = sum(f.file.rows - len(f.masked) for f in self.files if f.claim is claim)
            nothing = ChunkResult(claim.backfill, claim.chunk, claim.attempt, 0, 0, 0, 0, 0, 0)
            masked = results.get((claim.backfill, claim.chunk, claim.attempt), nothing)
            combined.append(replace(masked, read=claim.rows, inserted=masked.inserted + added_rows))
        return tuple(combined)

    @staticmethod
    def _of_commit(claim: Claim) -> dict[str, pa.Scalar]:
        """The values of ROW_COLUMNS, which all rows of a chunk share."""
        return {
            "_commit_lsn": pa.scalar(int(claim.watermark_lsn), pa.int64()),
            "_committed_at": pa.scalar(watermark_time(claim), pa.timestamp("us", "UTC")),
        }

    def _groups(self) -> Iterator[list[_LoadedFile]]:
        """Group the chunk files that are written as one file."""
        open_groups: dict[str, list[_LoadedFile]] = {}
        for file in self.files:
            if len(file.masked) == file.file.rows:
                continue
            group = open_groups.setdefault(file.footer.shape, [])
            group.append(file)
            if sum(f.file.bytes for f in group) >= FILE_BYTES or len(group) == MAX_TAGGED:
                yield open_groups.pop(file.footer.shape)
        yield from open_groups.values()

    def _write(
        self, into: PinnedTable, group: Sequence[_LoadedFile], facts: Facts, excluded: frozenset[str]
    ) -> WrittenFile:
        parts = _parts(group, facts)
        bodies = [
            Body(f"{self.table.lake}/{f.file.path}", footer.body, constants.body)
            for f, (footer, constants) in zip(group, parts, strict=True)
        ]
        end = parquet_footer.joined(parts, excluded)
        name, digests = hadoop_files.write_joined(self.table.session, into.path, bodies, end)
        for file, sha256 in zip(group, digests, strict=True):
            if file.file.sha256 != sha256:
                raise StagedFileDiffers(path=file.file.path, table=str(self.table.schema.table))
        masked = list(_masked_of(group))
        of_chunks = [facts(f.claim) for f in group]
        bounds: dict[str, Bounds] = {}
        of_history = ("_generation", "_commit_lsn", "_committed_at")
        for name_of_fact in of_history if "_generation" in of_chunks[0] else ("_commit_lsn",):
            values = [of_chunk[name_of_fact].as_py() for of_chunk in of_chunks]
            bounds[name_of_fact] = min(values), max(values)
        for name_of_key in group[0].bounds:
            between = [f.bounds[name_of_key] for f in group]
            bounds[name_of_key] = min(low for low, _ in between), max(high for _, high in between)
        return WrittenFile(
            name,
            sum(len(body.suffix) + body.size for body in bodies) + len(end),
            sum(f.file.rows for f in group),
            bounds,
            len(masked),
            data_files.vector_of(self.table.session, into, masked) if masked else None,
            {
                BACKFILL_TAG: group[0].claim.backfill,
                RANGES_TAG: ",".join(sorted({f"{f.claim.key_range}/{f.claim.attempt}" for f in group})),
            },
        )


def _parts(group: Sequence[_LoadedFile], facts: Facts) -> list[tuple[Footer, ConstantColumns]]:
    return [(f.footer, parquet_footer.constants(f.footer.rows, facts(f.claim))) for f in group]


def _masked_of(group: Sequence[_LoadedFile]) -> Iterator[int]:
    """The numbers of the masked rows in the file that the group is written to."""
    begins = 0
    for file in group:
        yield from (begins + row for row in file.masked.to_pylist())
        begins += file.file.rows


def first_load(table: StagedTable, next_batches: NextBatches, current: PinnedTable) -> FirstLoad:
    """Prepare a first load of the plan's chunks. Raises Declined if Spark has to read the chunks."""
    return _FirstLoadSearch(table, next_batches, current).load()


@dataclass(slots=True)
class _FirstLoadSearch:
    """Checks all conditions of a first load before anything is written.

    Each step raises Declined if its condition is not certain, or if the way would not pay off.
    """

    table: StagedTable
    next_batches: NextBatches
    current: PinnedTable

    def load(self) -> FirstLoad:
        claims, sweeps = self.next_batches.claims, self.next_batches.sweeps
        if may_share_keys(claims, sweeps):
            raise Declined("two chunks may have a key in common")
        attempts = {claim.key_range: claim.attempt for claim in claims}
        files = [self._read_footer(claim, file) for claim in claims for file in claim.files]
        target = TargetRows.pinned(self.table, self.current, listed=MAX_FILES, opened=MAX_FILES)
        foreign = [f for f in target.files if not self._shares_no_key(f, attempts)]
        compared_files = foreign if sweeps else [f for f in foreign if _may_overlap(f, files)]
        for sweep in sweeps:
            if sweep.parts is not None or sweep.keys is not None:
                raise Declined("what is swept is not the whole table")
            if len(self.next_batches.claims_of(sweep)) < sweep.chunks:
                raise Declined("a chunk of what is swept is missing")
        changes = sum(batch.changes for batch in self.next_batches.batches)
        older = sum(batch.changes for batch in self.next_batches.evidence)
        if changes > MAX_CHANGES or changes + older > MAX_ALL_CHANGES:
            raise Declined(f"{counted(changes + older, 'change')} may have keys of the chunks")
        held = changes + older + sum(file.rows for file in compared_files)
        with driver_memory.reserved(driver_memory.CHUNKS_WAIT_S) if held > FEW_KEYS else nullcontext():
            return self._searched(files, compared_files, target, is_current_held=held <= MAX_KEYS)

    def _searched(
        self,
        files: Sequence[_LoadedFile],
        compared_files: Sequence[DataFile],
        target: TargetRows,
        *,
        is_current_held: bool,
    ) -> FirstLoad:
        """Compare the chunks' keys with those of the changes and of `compared_files`. Mask the rows that are not new.

        With `is_current_held` the keys of current are held in memory, otherwise those of the chunks.
        """
        changes = [*chunk_keys.changed_keys(self.table, self.next_batches.batches)]
        for sweep in self.next_batches.sweeps:
            self._prove_nothing_swept(sweep, compared_files, target, changes)
        changed = [*changes, *chunk_keys.changed_keys(self.table, self.next_batches.evidence)]
        if is_current_held:
            changed += [target.keys(file) for file in compared_files]
        touched = KeySet(self._types, changed)
        masked = 0
        if len(touched) or not is_current_held:
            for group in _at_most(files, GROUP_ROWS):
                self._mask(group, touched, None if is_current_held else (target, compared_files))
                masked += sum(len(f.masked) for f in group)
                if masked > MAX_MASKED:
                    raise Declined("many of their keys are there already, or changed meanwhile")
        if masked > MAX_PRESENT and masked == sum(f.file.rows for f in files):
            raise Declined("none of their rows are new")
        bytes_left = MAX_MASKED_BYTES
        wanted = [*changes]
        for file in files:
            if len(file.masked):
                file.rows = self._rows(file)
                bytes_left -= file.rows.nbytes
                if bytes_left < 0:
                    raise Declined("rows that were changed meanwhile are too large for the driver's memory")
                wanted.append([file.rows[k] for k in self.table.schema.key])
        sought = KeySet(self._types, wanted).distinct().columns
        if sum(column.nbytes for column in sought) > MAX_SOUGHT_BYTES:
            raise Declined("the keys of the changes are too large for the driver's memory")
        target.find(sought)
        overlapping = [f for f in compared_files if _may_overlap(f, files)]
        load = FirstLoad(self.table, self.next_batches, files, target, overlapping)
        load.check()
        return load

    @property
    def _types(self) -> list[pa.DataType]:
        return chunk_keys.key_types(self.table.schema)

    def _shares_no_key(self, file: DataFile, attempts: Mapping[str, str]) -> bool:
        """Whether the file of current has no key in common with these chunks.

        It has none if its chunks are of the same backfill, and of other ranges or of the same attempt at a range.
        """
        if file.tags.get(BACKFILL_TAG) != self.next_batches.claims[0].backfill:
            return False
        walks = [walk.partition("/") for walk in file.tags.get(RANGES_TAG, "").split(",")]
        return all(attempt == attempts.get(key_range, attempt) for key_range, _, attempt in walks)

    def _read_footer(self, claim: Claim, file: StagedFile) -> _LoadedFile:
        with self.table.open(file) as opened:
            footer = parquet_footer.read_footer(opened, file.bytes)
            bounds = self._bounds(pq.read_metadata(opened))
        if sum(footer.rows) != file.rows:
            raise StagedFileDiffers(path=file.path, table=str(self.table.schema.table))
        return _LoadedFile(claim, file, footer, bounds)

    def _bounds(self, footer: pq.FileMetaData) -> dict[str, tuple[int, int]]:
        """The least and the greatest value of each integer column of the key, which the footer has by row group."""
        shape = chunk_schema(self.table.schema)
        names = [name for name in self.table.schema.key if pa.types.is_integer(shape.field(name).type)]
        groups = [group_bounds(footer, number, names) for number in range(footer.num_row_groups)]
        if any(len(low) < len(names) for low, _ in groups):
            raise Declined("a file of a chunk lacks the bounds of its key")
        return {name: (min(low[name] for low, _ in groups), max(high[name] for _, high in groups)) for name in names}

    def _mask(
        self,
        files: Sequence[_LoadedFile],
        touched: KeySet,
        searched: tuple[TargetRows, Sequence[DataFile]] | None,
    ) -> None:
        """Mask the rows whose keys are in `touched`, or in one of the files of current that are `searched`."""
        keys = [chunk_keys.keys_in(self.table, file.file) for file in files]
        masks = [pc.is_valid(places) for places in touched.places_of(keys)]
        if searched is not None:
            target, of_current = searched
            own = KeySet(self._types, keys)
            if own.has_doubles:  # such as a corrupt index at the source gives
                raise Declined("a chunk has a key twice")
            are_there = pa.array(target.are_in(of_current, own.columns))
            begins = 0
            for number, mask in enumerate(masks):
                masks[number] = pc.or_(mask, are_there.slice(begins, len(mask)))
                begins += len(mask)
        for file, mask in zip(files, masks, strict=True):
            file.masked = pc.indices_nonzero(mask)

    def _rows(self, file: _LoadedFile) -> pa.Table:
        """The masked rows of a file. Only the row groups that hold them are read."""
        parts = []
        masked = file.masked.cast(pa.int64())
        with self.table.open(file.file) as opened:
            parquet = pq.ParquetFile(opened)
            ends = 0
            for group, count in enumerate(file.footer.rows):
                begins, ends = ends, ends + count
                within = masked.filter(pc.and_(pc.greater_equal(masked, begins), pc.less(masked, ends)))
                if len(within):
                    parts.append(parquet.read_row_group(group).take(pc.subtract(within, begins)))
        return pa.concat_tables(parts)

    def _prove_nothing_swept(
        self,
        sweep: Sweep,
        foreign_files: Sequence[DataFile],
        target: TargetRows,
        changes: Sequence[Sequence[pa.ChunkedArray]],
    ) -> None:
        """Prove that the sweep removes no row of current. Raises Declined otherwise, and Spark computes the sweep.

        Each row of current's foreign files must be in a chunk of the backfill, or have changed since its beginning.
        """
        unseen = chunk_keys.keys_not_seen(self.table, self.next_batches.evidence, sweep)
        spared = KeySet(self._types, [*changes, *unseen])
        unspared_keys: list[list[pa.ChunkedArray]] = []
        unspared = 0
        for foreign_file in foreign_files:
            masked: NDArray[np.int64] | None = None
            for group in target.groups(foreign_file):
                columns = target.keys_of(group)
                unknown = pc.indices_nonzero(pc.invert(spared.holds(columns)))
                if not len(unknown):
                    continue
                if masked is None:
                    masked = data_files.masked_rows(self.table.session, self.current, foreign_file)
                rows = np.asarray(unknown.to_numpy(), np.int64)
                rows = rows[~np.isin(rows + group.begins, masked)]
                unspared_keys.append([column.take(pa.array(rows)) for column in columns])
                unspared += len(rows)
                if unspared > MAX_UNSPARED:
                    raise Declined("many rows of current have no change that spares them")
        unproven_keys = KeySet(self._types, unspared_keys)
        for file in (f for c in self.next_batches.claims_of(sweep) for f in c.files):
            if not len(unproven_keys):
                return
            unproven_keys = unproven_keys.without(chunk_keys.keys_in(self.table, file))
        if len(unproven_keys):
            raise Declined("there are rows to be swept")


def _at_most(files: Sequence[_LoadedFile], rows: int) -> Iterator[list[_LoadedFile]]:
    """Group files so that a group has no more rows, unless a single file has more."""
    group: list[_LoadedFile] = []
    for file in files:
        if group and sum(f.file.rows for f in group) + file.file.rows > rows:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def _may_overlap(file: DataFile, chunks: Sequence[_LoadedFile]) -> bool:
    """Whether a file of current may have a key of one of the chunks, by the bounds of the key's integer columns."""
    return any(
        all(
            not isinstance(file.low.get(name), int)
            or not isinstance(file.high.get(name), int)
            or (file.low[name] <= high and low <= file.high[name])
            for name, (low, high) in chunk.bounds.items()
        )
        for chunk in chunks
    )
