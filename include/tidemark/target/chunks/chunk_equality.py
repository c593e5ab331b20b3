"""Proves, without a Spark plan and without writing, that current already has all rows of some chunks.

    chunk files ── keys ──► the rows of current with these keys ── column by column ─┬─► all equal: `EqualChunks`
                                                                                     └─► Declined: Spark compares

While the lake is right, current has all rows of a verify's chunks, and of a backfill that is run again. `chunk_fold`
decides about a row whose key a change has too; that row may add nothing either. A sweep of such chunks removes nothing
if every row of current in its range has its key in a chunk, or in a change that the sweep spares.

All chunks are proven, or none. If a single row is missing, differs, lacks a value, exists twice, or has a value that
does not fit, Spark's `Comparison` counts and records the differences. Keys are looked up for a few million rows with
near keys at a time, and columns are compared for as many rows as fit in memory: memory does not grow with the table. No
value becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tidemark.formats.manifest import Claim, KeyPart, StagedFile, Sweep
from tidemark.formats.merge_result import ChunkResult
from tidemark.names import ROW_HOLES
from tidemark.schema.postgres_types import STRING, target_of
from tidemark.target.chunks import chunk_fold, chunk_keys
from tidemark.target.chunks.chunk_input import NextBatches, TouchedRows, may_share_keys
from tidemark.target.delta import data_files, hadoop_files
from tidemark.target.delta.delta_tables import PinnedPair
from tidemark.target.driver import driver_memory
from tidemark.target.driver.change_reader import StagedTable
from tidemark.target.driver.key_set import KeySet
from tidemark.target.driver.target_rows import RowGroup, TargetRows, bytes_of, group_bounds
from tidemark.target.merge_choice import MAX_TOUCHED, Declined, MergeFacts, against_folding_chunks

MAX_FILES: Final = 2_000  # of current, and of history where texts may lie in it
MAX_KEY_BYTES: Final = 16 * 2**30  # of current's keys, all that are read
PIECE_ROWS: Final = 4_000_000  # of chunks whose keys are looked up together
PIECE_BYTES: Final = 64 * 2**20  # of these keys
MAX_PIECE_ROWS: Final = 20_000_000  # of chunks or of current, looked up together
MAX_PIECE_BYTES: Final = 512 * 2**20  # of the keys of current that are looked up together
GROUP_ROWS: Final = 1_000_000  # of chunks, compared at a time
# Sizes in memory: a file of megabytes may decode to gigabytes.
GROUP_BYTES: Final = 256 * 2**20  # of the rows compared at a time, unless a single chunk has more
AT_ONCE_BYTES: Final = 128 * 2**20  # of these rows; up to this size all their columns are read together
COLUMN_BYTES: Final = 256 * 2**20  # of one column of these rows
TOUCHED_BYTES: Final = 128 * 2**20  # of chunk rows whose keys changes have
MAX_READ: Final = 4  # rows of current read per row compared, on average; keys too, if they are many

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EqualChunks:
    """The results of chunks that change nothing: one per chunk, and the rows swept per backfill, which are 0."""

    results: tuple[ChunkResult, ...]
    swept: dict[str, int]


def equal_chunks(
    table: StagedTable,
    next_batches: NextBatches,
    tables: PinnedPair,
    facts: MergeFacts,
    *,
    has_memory: bool = False,
) -> EqualChunks:
    """Prove that the chunks and sweeps of the next batches change nothing. Raises Declined if they do or may do.

    `has_memory`: the table already holds the reservation of the driver's memory, for its changes.
    """
    with nullcontext() if has_memory else driver_memory.reserved(driver_memory.CHUNKS_WAIT_S):
        return _Proof(table, next_batches, tables, facts).prove()


@dataclass(frozen=True, slots=True)
class _ClaimedFile:
    """A file of a claimed chunk. `low` and `high` are the bounds of its key's first column, None if they are not known.

    `is_older`: an older batch has claimed the chunk, and only a sweep needs its keys.
    """

    claim: Claim
    file: StagedFile
    footer: pq.FileMetaData
    is_older: bool
    key_bytes: int
    low: Any
    high: Any


@dataclass(frozen=True, slots=True)
class _ComparedFile:
    """A file of a claimed chunk that is compared.

    `touched` marks the rows whose keys changes have. `places` has for each row the number of the row of `_Current` with
    the same key, -1 if there is none.
    """

    claim: Claim
    file: StagedFile
    footer: pq.FileMetaData
    touched: NDArray[np.bool_]
    places: Rows

    @property
    def bytes(self) -> int:
        """The decoded size, which the footer has: chunk files are written without dictionaries."""
        return sum(self.footer.row_group(n).total_byte_size for n in range(self.footer.num_row_groups))

    @property
    def untouched(self) -> NDArray[np.bool_]:
        return ~self.touched


class _CurrentGroups:
    """Some row groups of current. Counts which of their rows have been found in a chunk: one bit each."""

    def __init__(self, target: TargetRows, groups: Sequence[RowGroup]) -> None:
        self.target = target
        self.groups = groups
        self._masked: dict[str, Rows] = {}
        self._found = [np.zeros(-(-group.rows // 8), np.uint8) for group in groups]

    def unmasked(self, group: RowGroup) -> Rows:
        """The numbers in the row group of the rows that no deletion vector masks."""
        if group.file.path not in self._masked:
            self._masked[group.file.path] = data_files.masked_rows(self.target.session, self.target.current, group.file)
        masked_numbers = self._masked[group.file.path] - group.begins
        return np.setdiff1d(np.arange(group.rows, dtype=np.int64), masked_numbers, assume_unique=True)

    def rows_of(self, numbers: Iterable[Sequence[int]]) -> int:
        return sum(self.groups[number].rows for some in numbers for number in some)

    def mark_found(self, number: int, rows: Rows) -> None:
        """Note that chunks have these rows of the row group `number`."""
        bits = np.unpackbits(self._found[number], count=self.groups[number].rows)
        bits[rows] = 1
        self._found[number] = np.packbits(bits)

    def keys_not_found(self) -> Iterator[list[pa.ChunkedArray]]:
        """Yield the keys of the rows that have not been found in a chunk, by row group."""
        for group, packed in zip(self.groups, self._found, strict=True):
            rows = self.unmasked(group)
            rows = rows[np.unpackbits(packed, count=group.rows)[rows] == 0]
            if len(rows):
                yield [column.take(pa.array(rows)) for column in self.target.keys_of(group)]


class _Current:
    """The rows of some row groups of current whose key's first column lies between `low` and `high`, numbered
    consecutively. `keys` are their keys; no key occurs twice. `numbers` are those of the row groups.

    Row groups are read one by one, not whole files: a first load or OPTIMIZE writes files of millions of rows, and the
    chunks of one run concern only a few of them.
    """

    def __init__(
        self, current: _CurrentGroups, numbers: Sequence[int], types: Sequence[pa.DataType], low: Any, high: Any
    ) -> None:
        self.target = current.target
        self.numbers = numbers
        self.groups = [current.groups[number] for number in numbers]
        rows, pieces, bytes_left = [], [], MAX_PIECE_BYTES
        for group in self.groups:
            own = current.unmasked(group)
            columns = self.target.keys_of(group)
            if len(own) < group.rows:
                columns = [column.take(pa.array(own)) for column in columns]
            if low is not None:
                first = columns[0].cast(types[0])
                inside = pc.and_(pc.greater_equal(first, low), pc.less_equal(first, high))
                if not _all(inside):
                    own = own[np.asarray(pc.fill_null(inside, False).to_numpy(), np.bool_)]
                    columns = [column.filter(inside) for column in columns]
            rows.append(own)
            pieces.append(columns)
            bytes_left -= sum(column.nbytes for column in columns)
            if bytes_left < 0 or sum(map(len, rows)) > MAX_PIECE_ROWS:
                raise Declined("current has many rows")
        self.keys = KeySet(types, pieces)
        if self.keys.has_doubles:
            raise Declined("a key is there twice")
        self.rows: Rows = np.concatenate([np.empty(0, np.int64), *rows])  # each row's number in its row group
        self.ends: Rows = np.cumsum([len(own) for own in rows], dtype=np.int64)

    def places_of(self, pieces: Sequence[Sequence[pa.ChunkedArray]]) -> list[Rows]:
        """For each row of each piece the number of the row of current with the same key, -1 if there is none."""
        numbers = (pc.fill_null(of.cast(pa.int64()), -1) for of in self.keys.places_of(pieces))
        return [np.asarray(of.to_numpy(), np.int64) for of in numbers]

    def by_group(self, places: Rows) -> list[tuple[RowGroup, NDArray[np.intp]]]:
        """The row groups that hold these rows, each with the indices in `places` of its rows."""
        numbers = np.searchsorted(self.ends, places, side="right")
        return [
            (self.groups[number], np.flatnonzero(numbers == number))
            for number in np.flatnonzero(np.bincount(numbers)).tolist()
        ]

    def mark_found(self, current: _CurrentGroups, places: Sequence[Rows]) -> None:
        """Note in `current` that chunks have these rows."""
        is_found = np.zeros(len(self.rows), np.bool_)
        for of_file in places:
            is_found[of_file[of_file >= 0]] = True
        begins = 0
        for number, ends in zip(self.numbers, self.ends.tolist(), strict=True):
            current.mark_found(number, self.rows[begins:ends][is_found[begins:ends]])
            begins = ends


@dataclass(slots=True)
class _Proof:
    """One attempt at a proof. Each step raises Declined if its condition does not hold or is not certain."""

    table: StagedTable
    next_batches: NextBatches
    tables: PinnedPair
    facts: MergeFacts

    def prove(self) -> EqualChunks:
        claims, sweeps = self.next_batches.claims, self.next_batches.sweeps
        if may_share_keys(claims, sweeps):
            raise Declined("two chunks may have a key in common")
        for sweep in sweeps:
            if sweep.keys is not None or len(self.next_batches.claims_of(sweep)) < sweep.chunks:
                raise Declined("what is swept are single keys, or a chunk is missing")
        files = [self._claimed_file(claim, file, is_older=False) for claim in claims for file in claim.files]
        swept = {sweep.backfill for sweep in sweeps}
        older_claims = [c for b in self.next_batches.evidence for c in b.claims if c.backfill in swept]
        files += [self._claimed_file(claim, file, is_older=True) for claim in older_claims for file in claim.files]
        pieces = _pieces(files)
        current = self._current_groups(files, sweeps)
        near = [self._groups_near(current.groups, piece) for piece in pieces]
        to_compare, to_read = sum(file.file.rows for file in files), current.rows_of(near)
        if to_read > max(MAX_PIECE_ROWS, MAX_READ * to_compare):
            pieces, near = [files], [self._groups_near(current.groups, files)]
            if max(to_compare, current.rows_of(near)) > MAX_PIECE_ROWS:
                raise Declined("the keys of the chunks' rows lie all over current")
        self._require_no_texts()
        changed = KeySet(
            self._types, chunk_keys.changed_keys(self.table, [*self.next_batches.batches, *self.next_batches.evidence])
        )
        touched: list[tuple[Claim, pa.Table]] = []
        for piece, numbers in zip(pieces, near, strict=True):
            self._prove_piece(piece, current, numbers, changed, touched)
        of_touched = self._touched_results(touched, current.target)
        for sweep in sweeps:
            self._require_nothing_swept(sweep, current)
        results = tuple(_result(claim, of_touched.get(claim.chunk)) for claim in claims)
        return EqualChunks(results, {sweep.backfill: 0 for sweep in sweeps})

    def _prove_piece(
        self,
        piece: Sequence[_ClaimedFile],
        groups: _CurrentGroups,
        numbers: Sequence[int],
        changed: KeySet,
        touched: list[tuple[Claim, pa.Table]],
    ) -> None:
        """Prove these files, whose keys lie only in the row groups `numbers`. Adds the rows whose keys changes have to
        `touched`."""
        current = _Current(groups, numbers, self._types, *_bounds_of(piece))
        keys = [chunk_keys.keys_in(self.table, file.file) for file in piece]
        places = current.places_of(keys)
        if self.next_batches.sweeps:
            current.mark_found(groups, places)
        chunks = [
            _ComparedFile(f.claim, f.file, f.footer, np.asarray(pc.is_valid(of_changes).to_numpy(), np.bool_), of_file)
            for f, of_changes, of_file in zip(piece, changed.places_of(keys), places, strict=True)
            if not f.is_older
        ]
        if any((chunk.places[chunk.untouched] < 0).any() for chunk in chunks):
            raise Declined("a row is missing")
        self._add_touched_rows(chunks, touched)
        for group in _groups(chunks):
            self._require_equal(group, current)

    # --- input ----------------------------------------------------------------------------------------------------

    @property
    def _types(self) -> list[pa.DataType]:
        return chunk_keys.key_types(self.table.schema)

    def _claimed_file(self, claim: Claim, file: StagedFile, *, is_older: bool) -> _ClaimedFile:
        with self.table.open(file) as opened:
            footer = pq.read_metadata(opened)
        first = self.table.schema.key[0]
        bounds = [group_bounds(footer, number, [first]) for number in range(footer.num_row_groups)]
        key_bytes = bytes_of(footer, self.table.schema.key)
        if not self._first_kind or not all(first in low for low, _ in bounds):
            return _ClaimedFile(claim, file, footer, is_older, key_bytes, None, None)
        low, high = min(low[first] for low, _ in bounds), max(high[first] for _, high in bounds)
        return _ClaimedFile(claim, file, footer, is_older, key_bytes, low, high)

    @property
    def _first_kind(self) -> type[int] | type[str] | None:
        """The type of the bounds of the key's first column, None if readers do not all order its values alike."""
        first = self._types[0]
        return int if pa.types.is_integer(first) else str if pa.types.is_string(first) else None

    def _current_groups(self, files: Sequence[_ClaimedFile], sweeps: Sequence[Sweep]) -> _CurrentGroups:
        """The row groups of current that may have a key of the files, or that the sweeps concern."""
        assert self.tables.current is not None
        target = TargetRows.pinned(
            self.table, self.tables.current, listed=MAX_FILES, opened=MAX_FILES, left=MAX_KEY_BYTES
        )
        bounds = self._bounds(files, sweeps)
        near = [f for f in target.files if self._may_overlap(f.low, f.high, bounds)]
        return _CurrentGroups(
            target, [g for f in near for g in target.groups(f) if self._may_overlap(g.low, g.high, bounds)]
        )

    def _groups_near(self, groups: Sequence[RowGroup], piece: Sequence[_ClaimedFile]) -> list[int]:
        """The numbers of the row groups that may have a key of the files."""
        bounds = self._bounds(piece, ())
        return [number for number, group in enumerate(groups) if self._may_overlap(group.low, group.high, bounds)]

    def _bounds(self, files: Sequence[_ClaimedFile], sweeps: Sequence[Sweep]) -> list[tuple[Any, Any]] | None:
        """The ranges of the key's first column that hold all keys of files and sweeps.

        An end is None if the range is open there. Returns None if the ranges are not known: the parts of a sweep over
        texts end by a collation, whose order is not the order of Parquet's bounds.
        """
        if (sweeps and self._first_kind is not int) or any(s.parts is None for s in sweeps):
            return None
        if any(file.low is None for file in files):
            return None
        parts = [(_first_value(part.lower), _first_value(part.upper)) for s in sweeps for part in s.parts or ()]
        return [*((file.low, file.high) for file in files), *parts]

    def _may_overlap(
        self, lowest: Mapping[str, Any], highest: Mapping[str, Any], bounds: Sequence[tuple[Any, Any]] | None
    ) -> bool:
        """Whether rows whose columns lie between `lowest` and `highest` may have a key within the bounds."""
        low, high = lowest.get(self.table.schema.key[0]), highest.get(self.table.schema.key[0])
        kind = self._first_kind or str
        if bounds is None or not isinstance(low, kind) or not isinstance(high, kind):
            return True
        return any((most is None or low <= most) and (least is None or least <= high) for least, most in bounds)

    # --- rows that changes have too -------------------------------------------------------------------------------

    def _add_touched_rows(self, chunks: Sequence[_ComparedFile], rows: list[tuple[Claim, pa.Table]]) -> None:
        """Add the rows of chunks whose keys changes have."""
        names = [*(c.name for c in self.table.schema.columns if c.name not in self.table.schema.dropped), "_text"]
        count = sum(of.num_rows for _, of in rows) + sum(int(chunk.touched.sum()) for chunk in chunks)
        if count > MAX_TOUCHED:
            raise Declined("many rows of chunks were changed meanwhile")
        for chunk in (chunk for chunk in chunks if chunk.touched.any()):
            bytes_left = TOUCHED_BYTES - sum(of.nbytes for _, of in rows)
            rows.append((chunk.claim, self._touched_rows(chunk, names, bytes_left)))

    def _touched_results(self, rows: Sequence[tuple[Claim, pa.Table]], target: TargetRows) -> dict[str, ChunkResult]:
        """The results for the chunk rows whose keys changes have, by chunk."""
        if not rows:
            return {}
        reason = against_folding_chunks(self.facts, sum(of.num_rows for _, of in rows))
        if reason is not None:
            raise Declined(reason)
        results = chunk_fold.touched_results(TouchedRows(self.table, self.next_batches, target, rows))
        if results is None:
            raise Declined("a row that changed meanwhile is not what it should be")
        return {result.chunk: result for result in results}

    def _touched_rows(self, chunk: _ComparedFile, names: Sequence[str], most_bytes: int) -> pa.Table:
        """The touched rows of a file. Only the row groups that hold them are read."""
        pieces, begins = [], 0
        with self.table.open(chunk.file) as opened:
            parquet = pq.ParquetFile(opened, metadata=chunk.footer)
            for number in range(chunk.footer.num_row_groups):
                ends = begins + chunk.footer.row_group(number).num_rows
                touched = chunk.touched[begins:ends]
                if touched.any():
                    pieces.append(parquet.read_row_group(number, columns=list(names)).filter(pa.array(touched)))
                    most_bytes -= pieces[-1].nbytes
                if most_bytes < 0:
                    raise Declined("large rows changed meanwhile")
                begins = ends
        return pa.concat_tables(pieces)

    # --- conditions -----------------------------------------------------------------------------------------------

    def _require_no_texts(self) -> None:
        """Require that chunks and history have no value that does not fit: its text would have to be compared."""
        if not any(target_of(c.target).unfit and c.target != STRING.ddl for c in self.table.schema.columns):
            return
        for file in (f for c in self.next_batches.claims for f in c.files):
            if self.table.read(file, ["_text"])["_text"].null_count < file.rows:
                raise Declined("a value does not fit")
        history = self.tables.history
        if history.is_mapped:  # a history that a replay copied has `_text` under another name in its files
            raise Declined("history's files have names of their own")
        files = data_files.data_files(history)
        if files is None or len(files) > MAX_FILES:
            raise Declined("history has many files")
        for each in files:
            with hadoop_files.open_to_read(self.table.session, f"{history.path}/{each.path}", each.bytes) as opened:
                if _has_text(pq.ParquetFile(opened)):
                    raise Declined("a value did not fit")

    def _require_nothing_swept(self, sweep: Sweep, current: _CurrentGroups) -> None:
        """Require that the sweep removes no row of current.

        Each row must be in a chunk of the backfill, have changed since the backfill began, or lie outside the sweep's
        parts.
        """
        unseen = chunk_keys.keys_not_seen(self.table, self.next_batches.evidence, sweep)
        spared = KeySet(self._types, [*chunk_keys.changed_keys(self.table, self.next_batches.batches), *unseen])
        for columns in current.keys_not_found():
            if sweep.parts is not None:
                inside = self._within(columns, sweep.parts)
                columns = [column.filter(inside) for column in columns]
            if not _all(spared.holds(columns)):
                raise Declined("there are rows to be swept")

    def _within(self, columns: Sequence[pa.ChunkedArray], parts: Sequence[KeyPart]) -> pa.ChunkedArray:
        """Whether keys lie in one of the parts. The key must be one integer column, which all engines order alike."""
        if len(columns) > 1 or not pa.types.is_integer(columns[0].type):
            raise Declined("parts of a key in an order of its own are swept")
        own = columns[0].cast(pa.int64())
        inside = pc.less(own, own)  # none
        for part in parts:
            lower, upper = _first_value(part.lower), _first_value(part.upper)
            above = pc.equal(own, own) if lower is None else pc.greater(own, lower)
            inside = pc.or_(inside, above if upper is None else pc.and_(above, pc.less_equal(own, upper)))
        return inside

    def _require_equal(self, group: Sequence[_ComparedFile], current: _Current) -> None:
        """Require that current has the chunks' untouched rows, by comparing one column after the other."""
        places = np.concatenate([chunk.places[chunk.untouched] for chunk in group])
        of_groups = current.by_group(places)
        if sum(row_group.rows for row_group, _ in of_groups) > MAX_READ * GROUP_ROWS:
            raise Declined("the chunks' rows lie all over current")
        if not len(places):
            return
        in_order = pa.array(np.concatenate([indices for _, indices in of_groups]))
        schema = self.table.schema
        names = [c.name for c in schema.columns if c.name not in (*schema.key, *schema.dropped)]
        whole = sum(chunk.bytes for chunk in group) <= AT_ONCE_BYTES
        if not whole and any(sum(bytes_of(c.footer, [name]) for c in group) > COLUMN_BYTES for name in names):
            raise Declined("large values")
        for names_at_once in [[ROW_HOLES, *names]] if whole else [[name] for name in (ROW_HOLES, *names)]:
            current_pieces: dict[str, list[pa.Array]] = {name: [] for name in names_at_once}
            for row_group, indices in of_groups:
                rows = pa.array(current.rows[places[indices]])
                for name, column in current.target.columns(row_group, names_at_once, rows).items():
                    current_pieces[name] += column.chunks
            of_chunks = [name for name in names_at_once if name != ROW_HOLES]
            chunk_tables = [self.table.read(chunk.file, of_chunks) for chunk in group]
            for name in names_at_once:
                if name == ROW_HOLES:
                    if any(len(piece) > piece.null_count for piece in current_pieces[name]):
                        raise Declined("a row lacks a value")
                    continue
                of_current = pa.chunked_array(current_pieces[name], current.target.types[name])
                own = [
                    of[name].cast(of_current.type).filter(pa.array(chunk.untouched))
                    for of, chunk in zip(chunk_tables, group, strict=True)
                ]
                chunk_column = pa.chunked_array([piece for column in own for piece in column.chunks], of_current.type)
                if not _are_equal(chunk_column.take(in_order), of_current):
                    raise Declined("a row differs")


def _result(claim: Claim, touched: ChunkResult | None) -> ChunkResult:
    overtaken, lost = (0, 0) if touched is None else (touched.overtaken, touched.lost_by_window)
    unchanged = claim.rows - overtaken
    return ChunkResult(claim.backfill, claim.chunk, claim.attempt, claim.rows, 0, 0, unchanged, overtaken, lost)


def _first_value(key: tuple[str, ...] | None) -> int | None:
    return None if key is None else int(key[0])


def _pieces(files: Sequence[_ClaimedFile]) -> list[list[_ClaimedFile]]:
    """Group files whose keys lie near each other, so that few row groups of current have keys of more than one group.

    Files without bounds may have any key. Then all files are one group. Raises Declined if it would be too large.
    """
    if any(file.low is None for file in files):
        if sum(file.file.rows for file in files) > MAX_PIECE_ROWS:
            raise Declined("many rows")
        return [list(files)]
    pieces: list[list[_ClaimedFile]] = []
    rows = size = 0
    for file in sorted(files, key=lambda f: f.low):
        if not pieces or rows + file.file.rows > PIECE_ROWS or size + file.key_bytes > PIECE_BYTES:
            pieces.append([])
            rows = size = 0
        pieces[-1].append(file)
        rows += file.file.rows
        size += file.key_bytes
    return pieces


def _bounds_of(files: Sequence[_ClaimedFile]) -> tuple[Any, Any]:
    """The bounds of the key's first column in all of these files, None if they are not known."""
    if any(file.low is None for file in files):
        return None, None
    return min(file.low for file in files), max(file.high for file in files)


def _groups(chunks: Sequence[_ComparedFile]) -> Iterator[list[_ComparedFile]]:
    """Group chunks whose rows lie near each other in current, so that few of its files are read for each group."""
    group: list[_ComparedFile] = []
    rows = size = 0
    for chunk in sorted(chunks, key=lambda c: int(c.places.max(initial=-1))):
        if group and (rows >= GROUP_ROWS or size + chunk.bytes > GROUP_BYTES):
            yield group
            group, rows, size = [], 0, 0
        group.append(chunk)
        rows, size = rows + chunk.file.rows, size + chunk.bytes
    if group:
        yield group


def _has_text(parquet: pq.ParquetFile) -> bool:
    """Whether a row has a text in `_text`. The footer's NULL count decides; without a count the column is read."""
    for number in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(number)
        for n in range(group.num_columns):
            column = group.column(n)
            if column.path_in_schema.partition(".")[0] == "_text":
                counted = column.is_stats_set and column.statistics.has_null_count
                if not counted or column.statistics.null_count < column.num_values:
                    texts = parquet.read(columns=["_text"])["_text"]
                    return bool(texts.null_count < len(texts))
    return False


def _are_equal(chunk_values: pa.ChunkedArray, current_values: pa.ChunkedArray) -> bool:
    """Whether all values are stored alike (`fold.stored_form`): 0.0 differs from -0.0, and NaN equals NaN."""
    if pa.types.is_nested(chunk_values.type):
        return chunk_fold.stored_forms(pa.table({"of": chunk_values}), ["of"]) == chunk_fold.stored_forms(
            pa.table({"of": current_values}), ["of"]
        )
    have_nulls = chunk_values.null_count or current_values.null_count
    if have_nulls and not _all(pc.equal(pc.is_null(chunk_values), pc.is_null(current_values))):
        return False
    if pa.types.is_floating(chunk_values.type):
        nan = pc.fill_null(pc.is_nan(chunk_values), True)
        if not _all(pc.equal(nan, pc.fill_null(pc.is_nan(current_values), True))):
            return False
        bits = pa.int32() if pa.types.is_float32(chunk_values.type) else pa.int64()
        chunk_values, current_values = (
            of.filter(pc.invert(nan)).combine_chunks().view(bits) for of in (chunk_values, current_values)
        )
    return _all(pc.equal(chunk_values, current_values))


def _all(truths: Any) -> bool:
    return bool(pc.all(truths, min_count=0).as_py())
