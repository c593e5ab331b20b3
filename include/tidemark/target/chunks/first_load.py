"""Adds the files of a first load's chunks to history and current; a deletion vector leaves out rows that are not new.

    chunk files ─┬─ rows whose key a change has, or current ─► `chunk_fold`; or copied as chunks ─► `ChunkChanges`
                 └─ all others, masked where they are not these ─► history: `read` rows at the watermark     (AddFile)
                                                                ─► current: rows of keys that it has not     (AddFile)

The target lacks a chunk's row if no row of current has its key, and no change of the plan or of its evidence has it
(R7). Its verdict is "inserted" whatever its values are, so it is never decoded. Its pages are copied, with columns of
one value beside them: those of the high watermark (`parquet_footer`). The other rows are masked in the copies by a
deletion vector, and are merged as any chunk's rows.

When can no row of current have the key? Either current's files are chunks of the same backfill that were added here
before, whose ranges do not overlap. Or the keys of current are read and compared. Too many rows may be masked, never
too few. A sweep removes nothing if the key of every row of current is in a chunk of the backfill, or in a change that
the sweep spares. Otherwise `first_load` raises Declined.

Files are copied, not referred to: staging has its own retention, and VACUUM manages only files of the table.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession

from tidemark.errors import StagedFileDiffers
from tidemark.formats.columns import chunk_schema
from tidemark.formats.manifest import Claim, StagedFile, Sweep
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.formats.merge_result import ChunkResult
from tidemark.schema.table import TableSchema
from tidemark.target.chunks import chunk_keys
from tidemark.target.chunks.chunk_rows import (
    NextBatches,
    TouchedRows,
    moment_of,
)
from tidemark.target.delta import data_files, delta_tables, hadoop_files, parquet_footer
from tidemark.target.delta.data_files import DataFile
from tidemark.target.delta.delta_tables import PinnedTable, WrittenFile
from tidemark.target.delta.hadoop_files import Body
from tidemark.target.delta.parquet_footer import Constants, Footer
from tidemark.target.driver.change_reader import StagedTable
from tidemark.target.driver.key_set import KeySet
from tidemark.target.driver.target_rows import TargetRows
from tidemark.target.merge_choice import Declined

log = logging.getLogger(__name__)

MAX_KEYS: Final = 2_000_000  # that the chunks' are compared with
MAX_MASKED: Final = 200_000  # rows of chunks that are not added as they are, and
MAX_MASKED_BYTES: Final = 256 * 2**20  # of these, decoded
MAX_FILES: Final = 10_000  # of current
MAX_KEY_BYTES: Final = 512 * 2**20  # of current's keys
FILE_BYTES: Final = 128 * 2**20  # from which on an added file takes in no further chunk
MAX_TAGGED: Final = 64  # chunks of one added file

# What an added file says of itself in Delta's log.
BACKFILL_TAG: Final = "tidemark.backfill"
RANGES_TAG: Final = "tidemark.ranges"  # each range with the attempt that read it


# The columns that all rows of a chunk have alike.
Facts = Callable[[Claim], Mapping[str, pa.Scalar]]


@dataclass(slots=True)
class _LoadedFile:
    """One file of a claim: where its pages lie, between which values its key's whole numbers are, and the numbers of
    the rows that are not added as they are, with these rows."""

    claim: Claim
    file: StagedFile
    footer: Footer
    bounds: dict[str, tuple[int, int]]
    masked: pa.Array = field(default_factory=lambda: pa.array([], pa.uint64()))
    rows: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class FirstLoad:
    """`target` has found the rows of current whose keys the masked rows have, or the changes; `others` are those files
    of current that may have keys of chunks."""

    table: StagedTable
    coming: NextBatches
    claims: Sequence[Claim]
    sweeps: Sequence[Sweep]
    files: Sequence[_LoadedFile]
    target: TargetRows
    others: Sequence[DataFile]

    @property
    def session(self) -> SparkSession:
        return self.table.session

    @property
    def schema(self) -> TableSchema:
        return self.table.schema

    @property
    def rows(self) -> int:
        """How many are added as they are."""
        return sum(file.file.rows for file in self.files) - self.masked

    @property
    def masked(self) -> int:
        """How many are not."""
        return sum(len(file.masked) for file in self.files)

    def touched(self) -> TouchedRows:
        """Those that are not."""
        rows = [(file.claim, file.rows) for file in self.files if file.rows is not None]
        return TouchedRows(self.table, self.coming, self.target, rows)

    def left(self) -> list[PlannedBatch]:
        """The plan's batches without the rows that are added here, and without sweeps: as if the chunks had the masked
        rows alone, which are copied beside the plan."""
        claims = {claim.chunk: self._left(claim) for claim in self.claims}
        return [
            replace(b, claims=tuple(claims[c.chunk] for c in b.claims if claims[c.chunk].rows), sweeps=())
            for b in self.coming.batches
        ]

    def _left(self, claim: Claim) -> Claim:
        copies = []
        for file in self.files:
            if file.claim is claim and file.rows is not None:
                sink = io.BytesIO()
                pq.write_table(file.rows, sink, compression="zstd", compression_level=1)
                content = sink.getvalue()
                folder = f"{self.coming.scratch}/{claim.chunk}-{claim.attempt}"
                name = hadoop_files.write_new(self.session, f"{self.table.lake}/{folder}", content)
                sha256 = hashlib.sha256(content).hexdigest()
                version = file.file.schema_version
                copies.append(StagedFile(f"{folder}/{name}", len(file.masked), len(content), sha256, version))
        return replace(claim, rows=sum(copy.rows for copy in copies), files=tuple(copies))

    def rows_there(self) -> DataFrame | None:
        """The rows of current that chunks may have too."""
        if not self.others:
            return None
        return delta_tables.rows_of_files(self.session, self.target.current, [file.added for file in self.others])

    def check(self) -> None:
        """Raises what writing the files would raise for what their footers say."""
        for group in self._groups():
            parquet_footer.joined(_parts(group, self._of_commit), frozenset({"_text"}))

    def files_of_history(self, history: PinnedTable) -> list[WrittenFile]:
        """`read` rows, in files of history's folder that are still to be committed. Raises StagedFileDiffers."""

        def facts(claim: Claim) -> dict[str, pa.Scalar]:
            return {
                **self._of_commit(claim),
                "_generation": pa.scalar(self.coming.generation, pa.int32()),
                "_ordinal": pa.scalar(0, pa.int64()),
                "_op": pa.scalar("read", pa.string()),
            }

        return [self._written(history, group, facts, frozenset()) for group in self._groups()]

    def files_of_current(self) -> list[WrittenFile]:
        """The same rows, in files of current's folder."""
        text = frozenset({"_text"})
        return [self._written(self.target.current, group, self._of_commit, text) for group in self._groups()]

    def results(self, of_masked: Iterable[ChunkResult]) -> tuple[ChunkResult, ...]:
        """What became of each chunk, given what became of the rows that went another way."""
        results = {(r.backfill, r.chunk, r.attempt): r for r in of_masked}
        said = []
        for claim in self.claims:
            whole = sum(f.file.rows - len(f.masked) for f in self.files if f.claim is claim)
            nothing = ChunkResult(claim.backfill, claim.chunk, claim.attempt, 0, 0, 0, 0, 0, 0)
            masked = results.get((claim.backfill, claim.chunk, claim.attempt), nothing)
            said.append(replace(masked, read=claim.rows, inserted=masked.inserted + whole))
        return tuple(said)

    @staticmethod
    def _of_commit(claim: Claim) -> dict[str, pa.Scalar]:
        """ROW_COLUMNS of all rows of a chunk."""
        return {
            "_commit_lsn": pa.scalar(int(claim.watermark_lsn), pa.int64()),
            "_committed_at": pa.scalar(moment_of(claim), pa.timestamp("us", "UTC")),
        }

    def _groups(self) -> Iterator[list[_LoadedFile]]:
        """Which files become one."""
        open_groups: dict[str, list[_LoadedFile]] = {}
        for file in self.files:
            if len(file.masked) == file.file.rows:
                continue
            group = open_groups.setdefault(file.footer.shape, [])
            group.append(file)
            if sum(f.file.bytes for f in group) >= FILE_BYTES or len(group) == MAX_TAGGED:
                yield open_groups.pop(file.footer.shape)
        yield from open_groups.values()

    def _written(
        self, into: PinnedTable, group: Sequence[_LoadedFile], facts: Facts, left_out: frozenset[str]
    ) -> WrittenFile:
        parts = _parts(group, facts)
        bodies = [
            Body(f"{self.table.lake}/{f.file.path}", footer.body, constants.body)
            for f, (footer, constants) in zip(group, parts, strict=True)
        ]
        end = parquet_footer.joined(parts, left_out)
        name, digests = hadoop_files.write_joined(self.session, into.path, bodies, end)
        for file, sha256 in zip(group, digests, strict=True):
            if file.file.sha256 != sha256:
                raise StagedFileDiffers(path=file.file.path, table=str(self.schema.table))
        masked = list(_masked_of(group))
        lsns = [int(f.claim.watermark_lsn) for f in group]
        bounds = {"_commit_lsn": (min(lsns), max(lsns))}
        for name_of_key in group[0].bounds:
            between = [f.bounds[name_of_key] for f in group]
            bounds[name_of_key] = min(low for low, _ in between), max(high for _, high in between)
        return WrittenFile(
            name,
            sum(len(body.behind) + body.size for body in bodies) + len(end),
            sum(f.file.rows for f in group),
            bounds,
            len(masked),
            data_files.vector_of(self.session, into, masked) if masked else None,
            {
                BACKFILL_TAG: group[0].claim.backfill,
                RANGES_TAG: ",".join(sorted({f"{f.claim.key_range}/{f.claim.attempt}" for f in group})),
            },
        )


def _parts(group: Sequence[_LoadedFile], facts: Facts) -> list[tuple[Footer, Constants]]:
    return [(f.footer, parquet_footer.constants(f.footer.rows, facts(f.claim))) for f in group]


def _masked_of(group: Sequence[_LoadedFile]) -> Iterator[int]:
    """The numbers of masked rows in the file that these become."""
    begins = 0
    for file in group:
        yield from (begins + row for row in file.masked.to_pylist())
        begins += file.file.rows


def first_load(table: StagedTable, coming: NextBatches, current: PinnedTable) -> FirstLoad:
    """The plan's chunks, whose files are added as they are. Raises Declined where Spark shall read them all."""
    claims = [c for b in coming.batches for c in b.claims]
    return _FirstLoadSearch(table, coming, claims, current).load()


@dataclass(slots=True)
class _FirstLoadSearch:
    """Finds out what has to be known before anything is written. Every step raises Declined where it is not certain, or
    not worth it."""

    table: StagedTable
    coming: NextBatches
    claims: Sequence[Claim]
    current: PinnedTable

    def load(self) -> FirstLoad:
        sweeps = [s for b in self.coming.batches for s in b.sweeps]
        backfills = {c.backfill for c in self.claims} | {s.backfill for s in sweeps}
        attempts: dict[str, set[str]] = {}
        for claim in self.claims:
            attempts.setdefault(claim.key_range, set()).add(claim.attempt)
        if len(backfills) > 1 or any(len(of_range) > 1 for of_range in attempts.values()):
            raise Declined("two chunks may have a key in common")
        files = [self._read_footer(claim, file) for claim in self.claims for file in claim.files]
        target = TargetRows.pinned(self.table, self.current, listed=MAX_FILES, opened=MAX_FILES, left=MAX_KEY_BYTES)
        foreign = [f for f in target.files if not self._is_apart(f, attempts)]
        others = foreign if sweeps else [f for f in foreign if _may_meet(f, files)]
        if sum(file.rows for file in others) > MAX_KEYS:
            raise Declined("many keys are there already")
        keys_there = [target.keys(file) for file in others]
        changes = [self._changed_keys(b) for b in self.coming.batches]
        older = [self._changed_keys(b) for b in self.coming.evidence]
        for sweep in sweeps:
            self._prove_nothing_swept(sweep, others, keys_there, [k for b in changes for k in b])
        compared = [*keys_there, *[columns for b in (*changes, *older) for columns in b]]
        if sum(len(columns[0]) for columns in compared) > MAX_KEYS:
            raise Declined("many keys are there already")
        touched = KeySet(self._types, compared)
        for file in files:
            self._mask(file, touched)
        if sum(len(f.masked) for f in files) > MAX_MASKED:
            raise Declined("many of their keys are there already, or changed meanwhile")
        left = MAX_MASKED_BYTES
        wanted = [columns for b in changes for columns in b]
        for file in files:
            if len(file.masked):
                file.rows = self._rows(file)
                left -= file.rows.nbytes
                if left < 0:
                    raise Declined("rows that were changed meanwhile are too large for the driver's memory")
                wanted.append([file.rows[k] for k in self.schema.key])
        target.find(KeySet(self._types, wanted).distinct().columns)
        load = FirstLoad(
            self.table,
            self.coming,
            self.claims,
            sweeps,
            files,
            target,
            [f for f in others if _may_meet(f, files)],
        )
        load.check()
        return load

    @property
    def session(self) -> SparkSession:
        return self.table.session

    @property
    def schema(self) -> TableSchema:
        return self.table.schema

    @property
    def _types(self) -> list[pa.DataType]:
        shape = chunk_schema(self.schema)
        return [shape.field(name).type for name in self.schema.key]

    def _is_apart(self, file: DataFile, attempts: Mapping[str, set[str]]) -> bool:
        """Whether the file is of chunks that have no key in common with these: of other ranges of the backfill, or of
        the same walk along a range."""
        if file.tags.get(BACKFILL_TAG) != self.claims[0].backfill:
            return False
        walks = [walk.partition("/") for walk in file.tags.get(RANGES_TAG, "").split(",")]
        return all(attempt in attempts.get(key_range, {attempt}) for key_range, _, attempt in walks)

    def _read_footer(self, claim: Claim, file: StagedFile) -> _LoadedFile:
        with hadoop_files.open_to_read(self.session, f"{self.table.lake}/{file.path}", file.bytes) as opened:
            footer = parquet_footer.read_footer(opened, file.bytes)
            parquet = pq.ParquetFile(opened)
            shape = chunk_schema(self.schema)
            bounds = {}
            for name in self.schema.key:
                if pa.types.is_integer(shape.field(name).type):
                    between = pc.min_max(parquet.read(columns=[name])[name]).as_py()
                    bounds[name] = between["min"], between["max"]
        if sum(footer.rows) != file.rows:
            raise StagedFileDiffers(path=file.path, table=str(self.schema.table))
        return _LoadedFile(claim, file, footer, bounds)

    def _changed_keys(self, batch: PlannedBatch) -> list[list[pa.ChunkedArray]]:
        return [*chunk_keys.changed(self.session, self.table.lake, self.schema.key, batch)]

    def _mask(self, file: _LoadedFile, touched: KeySet) -> None:
        if not len(touched):
            return
        with hadoop_files.open_to_read(self.session, f"{self.table.lake}/{file.file.path}", file.file.bytes) as opened:
            read = pq.ParquetFile(opened).read(columns=list(self.schema.key))
        file.masked = pc.indices_nonzero(touched.holds([read[k] for k in self.schema.key]))

    def _rows(self, file: _LoadedFile) -> pa.Table:
        """The masked rows, read by the row groups that they lie in."""
        parts = []
        masked = file.masked.cast(pa.int64())
        with hadoop_files.open_to_read(self.session, f"{self.table.lake}/{file.file.path}", file.file.bytes) as opened:
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
        others: Sequence[DataFile],
        keys_there: Sequence[Sequence[pa.ChunkedArray]],
        changes: Sequence[Sequence[pa.ChunkedArray]],
    ) -> None:
        """Every row of the other files of current is in a chunk of the backfill, or was changed since its beginning.
        Raises Declined where that is not so: Spark finds what is to be removed."""
        claims = [
            c for b in (*self.coming.evidence, *self.coming.batches) for c in b.claims if c.backfill == sweep.backfill
        ]
        if sweep.parts is not None or sweep.keys is not None or len(claims) < sweep.chunks:
            raise Declined("what is swept is not the whole table, or a chunk is missing")
        unseen = chunk_keys.not_seen(self.session, self.table.lake, self.schema.key, self.coming.evidence, sweep)
        spared = KeySet(self._types, [*changes, *unseen])
        in_question: list[list[pa.ChunkedArray]] = []
        for other, columns in zip(others, keys_there, strict=True):
            unknown = pc.indices_nonzero(pc.invert(spared.holds(columns)))
            masked = data_files.masked_rows(self.session, self.current, other) if len(unknown) else set()
            rows = pa.array([row for row in unknown.to_pylist() if row not in masked], pa.int64())
            in_question.append([column.take(rows) for column in columns])
        left = KeySet(self._types, in_question)
        for file in (f for c in claims for f in c.files):
            if not len(left):
                return
            with hadoop_files.open_to_read(self.session, f"{self.table.lake}/{file.path}", file.bytes) as opened:
                read = pq.ParquetFile(opened).read(columns=list(self.schema.key))
            left = left.without([read[k] for k in self.schema.key])
        if len(left):
            raise Declined("there are rows to be swept")


def _may_meet(file: DataFile, chunks: Sequence[_LoadedFile]) -> bool:
    """Whether a file of current may have a key of one of the chunks, by the bounds of whole numbers."""
    return any(
        all(
            not isinstance(file.low.get(name), int)
            or not isinstance(file.high.get(name), int)
            or (file.low[name] <= high and low <= file.high[name])
            for name, (low, high) in chunk.bounds.items()
        )
        for chunk in chunks
    )
