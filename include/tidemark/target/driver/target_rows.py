"""Finds the rows of one version of current that have certain keys, as files and row numbers, and reads their values.

Raises Declined if the driver should not read these rows itself: there are too many, or a file is of another kind.
"""

from __future__ import annotations

import io
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from tidemark.formats.columns import staged_schema
from tidemark.names import ROW_HOLES
from tidemark.target.delta import data_files, hadoop_files
from tidemark.target.delta.compact_thrift import UnsupportedParquet
from tidemark.target.delta.data_files import DataFile
from tidemark.target.delta.delta_tables import PinnedTable
from tidemark.target.driver.arrow_columns import in_shape
from tidemark.target.driver.change_reader import StagedTable
from tidemark.target.driver.key_set import KeySet
from tidemark.target.driver.text_pages import Candidates, TextFilter, pages_of_texts
from tidemark.target.merge_choice import Declined

MAX_BYTES: Final = 128 * 2**20  # of a row group's columns, decoded

# The most bytes of current's key columns to read, decoded. Spark's MERGE reads and joins them too, but on a cluster it
# uses many machines. MAX_KEY_BYTES is about two billion bigints: a minute of CPU time. Texts that are compared in the
# pages of their files, such as uuids, take a third of that time (PAGE_BYTES_AS_ONE): the limit is 1.2 billion uuids.
# From an object store the bytes pass through the JVM, so the limit is an eighth for all keys (MAX_FAR_KEY_BYTES).
MAX_KEY_BYTES: Final = 16 * 2**30
PAGE_BYTES_AS_ONE: Final = 3
MAX_FAR_KEY_BYTES: Final = 2 * 2**30

MAX_COLUMN_BYTES: Final = 256 * 2**20  # of columns that are read of all rows of a row group, decoded

# What each reader reads of a file's key, and decodes of it, at once.
BUFFER_BYTES: Final = 8 * 2**20
PIECE_BYTES: Final = 64 * 2**20
PIECE_ROWS: Final = 100_000
# Files of together more bytes are read by several threads.
BY_ONE_BYTES: Final = 32 * 2**20
# Texts that are sorted, to find row groups between whose bounds one lies.
MAX_SORTED: Final = 100_000
READERS: Final = min(4, os.cpu_count() or 1)

# In the footer of a file whose days and times Spark wrote by the Julian calendar, as it can be told to.
_LEGACY_CALENDAR: Final = b"org.apache.spark.legacyDateTime"


_MANY_KEYS: Final = "current has more keys than the driver reads"

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a data file. `begins` is the number of its first row in the file. `low` and `high` are the
    bounds of its columns, as far as they are known."""

    file: DataFile
    number: int
    begins: int
    rows: int
    low: Mapping[str, Any]
    high: Mapping[str, Any]


class SoughtKeys:
    """The keys to find, all different. New keys above all existing ones need neither the set nor the ordered
    values, so both are computed on first use."""

    def __init__(self, types: Sequence[pa.DataType], columns: Sequence[pa.ChunkedArray]) -> None:
        self.types = types
        self.columns = columns
        self._bounds = [bounds_of(column) for column in columns]

    def __len__(self) -> int:
        return len(self.columns[0])

    @cached_property
    def keys(self) -> KeySet:
        return KeySet(self.types, [self.columns])

    @cached_property
    def texts(self) -> TextFilter | None:
        """The filter of a key that is one column of texts of one length; None for other keys."""
        return TextFilter.of(self.columns[0]) if len(self.types) == 1 and pa.types.is_string(self.types[0]) else None

    @cached_property
    def _values(self) -> list[Sequence[int] | Sequence[str] | Numbers | None]:
        """The ordered values of each column of whole numbers or texts; None for other columns, and for many texts,
        which take long to sort."""
        return [
            None
            if bounds is None or (isinstance(bounds[0], str) and len(column) > MAX_SORTED)
            else np.sort(np.asarray(column.to_numpy(), np.int64), kind="stable")  # in one pass if they rise already
            if isinstance(bounds[0], int)
            else sorted(column.to_pylist())
            for column, bounds in zip(self.columns, self._bounds, strict=True)
        ]

    def may_be_in(self, low: Callable[[str], Any], high: Callable[[str], Any], key: Sequence[str]) -> bool:
        """Whether rows between these bounds may have one of the keys, judged by the columns of whole numbers and of
        texts."""
        if not len(self):
            return False
        known = [
            (n, own, low(name), high(name))
            for n, (name, own) in enumerate(zip(key, self._bounds, strict=True))
            if own is not None and isinstance(low(name), type(own[0])) and isinstance(high(name), type(own[0]))
        ]
        if any(own[1] < least or most < own[0] for _, own, least, most in known):
            return False
        for n, _, least, most in known:
            values = self._values[n]
            if values is None:
                continue
            at = bisect_left(values, least)
            if at == len(values) or values[at] > most:
                return False
        return True

    def rows_in_order(self, columns: Sequence[pa.ChunkedArray]) -> Numbers | None:
        """The numbers of the rows that have one of the keys, if the key is one whole number that rises from row to row;
        None for other rows. It is a tenth of the work of looking up each row's key."""
        sought = self._values[0]
        if len(columns) > 1 or not isinstance(sought, np.ndarray) or columns[0].null_count:
            return None
        own = np.asarray(columns[0].to_numpy(), np.int64)
        if not (own[1:] > own[:-1]).all():
            return None
        between = sought[np.searchsorted(sought, own[0]) : np.searchsorted(sought, own[-1], side="right")]
        rows = np.searchsorted(own, between)
        found: Numbers = rows[own[rows] == between]
        return found


def bounds_of(column: pa.ChunkedArray) -> tuple[int, int] | tuple[str, str] | None:
    """The least and the greatest of whole numbers or texts; None for other types and for empty columns. Parquet
    orders texts by their bytes in UTF-8, and so does Python."""
    if not (pa.types.is_integer(column.type) or pa.types.is_string(column.type)) or len(column) == column.null_count:
        return None
    between = pc.min_max(column).as_py()
    return between["min"], between["max"]


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows of current with a sought key: for each row the number of its file, its number in the file, and the
    number of its key among the sought ones."""

    sought: SoughtKeys
    files: Numbers
    rows: Numbers
    keys: Numbers

    def of(self, columns: Sequence[pa.ChunkedArray]) -> FoundRows | None:
        """The rows of these keys; None if one of the keys was not sought."""
        places = np.asarray(pc.fill_null(self.sought.keys.places(columns).cast(pa.int64()), -1).to_numpy(), np.int64)
        if (places < 0).any():
            return None
        numbers = np.full(len(self.sought), -1, np.int64)
        numbers[places] = np.arange(len(places))
        keys = numbers[self.keys]
        kept = keys >= 0
        return FoundRows(SoughtKeys(self.sought.types, columns), self.files[kept], self.rows[kept], keys[kept])

    @property
    def is_there(self) -> NDArray[np.bool_]:
        """For each sought key, whether current has a row with it."""
        there = np.zeros(len(self.sought), np.bool_)
        there[self.keys] = True
        return there

    def first(self, keys: Sequence[int]) -> list[tuple[int, int] | None]:
        """For each of these keys, by number, its first row as file and row number."""
        numbers, at = np.unique(self.keys, return_index=True)
        by_key = dict(zip(numbers.tolist(), at.tolist(), strict=True))
        places = (by_key.get(key) for key in keys)
        return [None if at is None else (int(self.files[at]), int(self.rows[at])) for at in places]


@dataclass(slots=True)
class TargetRows:
    """Reads rows of current's pinned version, which consists of `files`. At most `most_files` may be opened.

    `left` is the number of bytes of keys that may still be read. Of texts that are compared in the pages of their
    files, so many bytes as `page_bytes_as_one` says count as one. `found` are the rows of the last sought keys.
    `footers` are those of files whose `groups` were read.
    """

    session: SparkSession
    current: PinnedTable
    files: Sequence[DataFile]
    key: Sequence[str]
    types: Mapping[str, pa.DataType]
    left: int
    most_files: int
    page_bytes_as_one: int = 1
    found: FoundRows | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)  # of `left`
    footers: dict[str, pq.FileMetaData] = field(default_factory=dict)

    @classmethod
    def pinned(
        cls, table: StagedTable, current: PinnedTable, *, listed: int, opened: int, left: int | None = None
    ) -> TargetRows:
        """Without `left` the limit of keys is that of current's store: a local folder, or an object store.

        Raises Declined if current has more than `listed` files, or if the log lacks their numbers of rows.
        """
        files = data_files.data_files(current)
        if files is None or len(files) > listed:
            raise Declined("current has many files, or files that say too little of themselves")
        shape = staged_schema(table.schema)
        types = {name: shape.field(name).type for name in shape.names}
        is_local = hadoop_files.local_path(table.session, current.path) is not None
        if left is None:
            left = MAX_KEY_BYTES if is_local else MAX_FAR_KEY_BYTES
        page_bytes_as_one = PAGE_BYTES_AS_ONE if is_local else 1
        return cls(table.session, current, files, table.schema.key, types, left, opened, page_bytes_as_one)

    def find(self, columns: Sequence[pa.ChunkedArray]) -> FoundRows:
        """The rows of these keys, which are all different.

        Reads the key's columns of the files and row groups whose bounds allow one of the keys. Keys among the last
        sought ones are not sought again. Raises Declined.
        """
        known = None if self.found is None else self.found.of(columns)
        if known is None:
            known = self.found = self._search(columns, self.files)
        return known

    def are_in(self, files: Sequence[DataFile], columns: Sequence[pa.ChunkedArray]) -> NDArray[np.bool_]:
        """For each key whether one of these files of current has a row with it. Masked rows do not count.

        The keys must all be different, and the files be some of `files`. Raises Declined.
        """
        return self._search(columns, files).is_there

    def _search(self, columns: Sequence[pa.ChunkedArray], files: Sequence[DataFile]) -> FoundRows:
        sought = SoughtKeys([self.types[name] for name in self.key], columns)
        searched = {file.path for file in files if sought.may_be_in(file.low.get, file.high.get, self.key)}
        if len(searched) > self.most_files:
            raise Declined("many files of current may have one of the keys")
        pieces = self._read([n for n, file in enumerate(self.files) if file.path in searched], sought)
        nothing = np.empty(0, np.int64)
        return FoundRows(
            sought,
            np.concatenate([nothing, *(np.full(len(rows), number) for number, rows, _ in pieces)]),
            np.concatenate([nothing, *(rows for _, rows, _ in pieces)]),
            np.concatenate([nothing, *(keys for _, _, keys in pieces)]),
        )

    def by_file(self, found: FoundRows) -> list[tuple[DataFile, list[int]]]:
        """The rows grouped by file."""
        numbers = np.unique(found.files).tolist()
        return [(self.files[n], np.sort(found.rows[found.files == n]).tolist()) for n in numbers]

    def _read(self, numbers: Sequence[int], sought: SoughtKeys) -> list[tuple[int, Numbers, Numbers]]:
        """For each of these files its number, its rows with one of the keys, and the numbers of these keys. Large
        files are read in parallel."""
        if sum(self.files[number].bytes for number in numbers) <= BY_ONE_BYTES:
            return [(number, *self._in_file(self.files[number], sought)) for number in numbers]
        with ThreadPoolExecutor(READERS, thread_name_prefix="keys of current") as threads:
            reading = [threads.submit(self._in_file, self.files[number], sought) for number in numbers]
            try:
                return [(number, *read.result()) for number, read in zip(numbers, reading, strict=True)]
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def _in_file(self, file: DataFile, sought: SoughtKeys) -> tuple[Numbers, Numbers]:
        """The file's rows with one of the keys, and the numbers of these keys."""
        rows, keys, masked = [np.empty(0, np.int64)], [np.empty(0, np.int64)], None
        with self._open(file) as source:
            parquet = _opened(source, file, buffer_size=BUFFER_BYTES, pre_buffer=False)
            for numbers, columns in self._pieces(source, parquet, sought):
                places = sought.keys.places(columns)
                within = pc.indices_nonzero(pc.is_valid(places))
                if not len(within):
                    continue
                if masked is None:
                    masked = data_files.masked_rows(self.session, self.current, file)
                own = np.asarray(within.to_numpy(), np.int64)
                own = own + numbers.start if isinstance(numbers, range) else numbers[own]
                stays = ~np.isin(own, masked)
                rows.append(own[stays])
                keys.append(np.asarray(places.take(within).cast(pa.int64()).to_numpy(), np.int64)[stays])
        return np.concatenate(rows), np.concatenate(keys)

    def _pieces(
        self, source: io.BufferedIOBase, parquet: pq.ParquetFile, sought: SoughtKeys
    ) -> Iterator[tuple[range | Numbers, list[pa.ChunkedArray]]]:
        """The key's columns of the row groups whose bounds allow one of the keys, each piece with its rows' numbers
        in the file.

        Row groups may have any size, so they are read in pieces. For a filter of texts a piece has only the rows that
        pass it, as long as the file's pages have the form that `text_pages` reads; Arrow reads the rest.
        """
        may_have = None if sought.texts is None else Candidates(sought.texts)
        in_pages, ends = may_have is not None, 0
        for group in range(parquet.num_row_groups):
            begins, ends = ends, ends + parquet.metadata.row_group(group).num_rows
            low, high = group_bounds(parquet.metadata, group, self.key)
            if not sought.may_be_in(low.get, high.get, self.key):
                continue
            self._count(parquet, group, self.page_bytes_as_one if in_pages else 1)
            at_once = _rows_at_once(ends - begins, bytes_of(parquet.metadata, self.key, group), len(sought))
            done = 0
            if may_have is not None and in_pages:
                try:
                    for texts in pages_of_texts(source, parquet, group, self.key[0]):
                        may_have.add(begins + done, texts)
                        done += len(texts)
                        if may_have.count >= at_once:
                            yield may_have.take()
                except UnsupportedParquet:
                    in_pages = False  # neither are the file's other row groups
            if done == ends - begins:
                continue
            for piece in parquet.iter_batches(at_once, row_groups=[group], columns=list(self.key)):
                read = pa.Table.from_batches([piece]).slice(min(done, piece.num_rows))
                done = max(0, done - piece.num_rows)
                begins += piece.num_rows
                if not read.num_rows:
                    continue
                columns = [self._column(read, name) for name in self.key]
                rows = sought.rows_in_order(columns)
                if rows is None:
                    yield range(begins - read.num_rows, begins), columns
                elif len(rows):
                    yield rows + (begins - read.num_rows), [column.take(pa.array(rows)) for column in columns]
        if may_have is not None and may_have.count:
            yield may_have.take()

    def keys(self, file: DataFile) -> list[pa.ChunkedArray]:
        """The key's columns of all rows of the file, masked ones included. Raises Declined."""
        with self._open(file) as source:
            parquet = _opened(source, file)
            self._count(parquet)
            return [self._column(parquet.read(columns=[name]), name) for name in self.key]

    def groups(self, file: DataFile) -> list[RowGroup]:
        """The file's row groups with the bounds of their keys in the footer. Raises Declined."""
        with self._open(file) as source:
            parquet = _opened(source, file)
        self.footers[file.path] = parquet.metadata
        begins, groups = 0, []
        for number in range(parquet.num_row_groups):
            rows = parquet.metadata.row_group(number).num_rows
            groups.append(RowGroup(file, number, begins, rows, *group_bounds(parquet.metadata, number, self.key)))
            begins += rows
        return groups

    def keys_of(self, group: RowGroup) -> list[pa.ChunkedArray]:
        """The key's columns of all rows of one of `groups`, masked ones included. Raises Declined."""
        self.left -= bytes_of(self.footers[group.file.path], self.key, group.number)
        if self.left < 0:
            raise Declined(_MANY_KEYS)
        return list(self.columns(group, self.key).values())

    def columns(
        self, group: RowGroup, names: Sequence[str], rows: pa.Array | None = None
    ) -> dict[str, pa.ChunkedArray]:
        """These columns of one of `groups`, masked rows included: all rows, or `rows` by their numbers in the
        group. Values that the file stores once in a dictionary stay in a dictionary until the rows are taken.
        Raises Declined."""
        footer = self.footers[group.file.path]
        if bytes_of(footer, names, group.number) > MAX_COLUMN_BYTES:
            raise Declined("a column of current is too large for the driver's memory")
        repeated = [] if rows is None else _with_dictionary(footer, names, group.number)
        with self._open(group.file) as source:
            parquet = pq.ParquetFile(source, metadata=footer, read_dictionary=repeated)
            there = [name for name in names if name in parquet.schema_arrow.names]
            # Of no column it would not say how many rows there are.
            read = parquet.read_row_group(group.number, columns=there or [self.key[0]])
            read = read if rows is None else read.take(rows)
            return {name: self._column(read, name) for name in names}

    def whole(self, file: DataFile, shape: pa.Schema, most_bytes: int) -> pa.Table:
        """All rows of the file, masked ones included, in this shape. Raises Declined if they have more than
        `most_bytes`."""
        with self._open(file) as source:
            parquet = _opened(source, file)
            if bytes_of(parquet.metadata, shape.names) > most_bytes:
                raise Declined("a small file of current has large values")
            read = parquet.read(columns=[name for name in shape.names if name in parquet.schema_arrow.names])
        return in_shape(read, shape)

    def _count(self, parquet: pq.ParquetFile, only: int | None = None, bytes_as_one: int = 1) -> None:
        with self.lock:
            self.left -= bytes_of(parquet.metadata, self.key, only) // bytes_as_one
            if self.left < 0:
                raise Declined(_MANY_KEYS)

    def _open(self, file: DataFile) -> Any:
        return hadoop_files.open_to_read(self.session, f"{self.current.path}/{file.path}", file.bytes)

    def _column(self, file_rows: pa.Table, name: str) -> pa.ChunkedArray:
        """The column in the source's present type. It is NULL in a file from before the column was added."""
        of = self.types.get(name, pa.list_(pa.string()))
        if name not in file_rows.column_names:
            return pa.chunked_array([pa.nulls(file_rows.num_rows, of)])
        return file_rows[name].cast(of)

    def values(
        self, names: Sequence[str], places: Sequence[tuple[int, int] | None]
    ) -> tuple[dict[str, pa.Array], list[frozenset[str]]]:
        """The columns' values in these rows, given by file and row number, and for each row the columns with a
        value that current does not have. Without a row these are all columns. Raises Declined."""
        if not names or not places:
            return {}, []
        if any(not _is_flat(self.types[name]) for name in names):
            raise Declined("a value that was not sent is of a nested type")
        pieces: list[pa.Table] = []
        number_in_parts: dict[tuple[int, int], int] = {}
        there = {place for place in places if place is not None}
        for number in sorted({file for file, _ in there}):
            rows = sorted(row for file, row in there if file == number)
            begins = sum(picked_rows.num_rows for picked_rows in pieces)
            number_in_parts |= {(number, row): begins + n for n, row in enumerate(rows)}
            pieces.append(self.rows(self.files[number], rows, names))
            if sum(piece.nbytes for piece in pieces) > MAX_BYTES:
                raise Declined("values that were not sent are too large for the driver's memory")
        shape = pa.schema([*((name, self.types[name]) for name in names), (ROW_HOLES, pa.list_(pa.string()))])
        rows_picked = pa.concat_tables([shape.empty_table(), *pieces]).combine_chunks()
        numbers = [None if place is None else number_in_parts[place] for place in places]
        rows_in_order = rows_picked.take(pa.array(numbers, pa.int64()))
        everything = frozenset(names)
        holes = rows_in_order[ROW_HOLES].to_pylist()
        lacking = [
            everything if place is None else frozenset(hole or ()) for place, hole in zip(places, holes, strict=True)
        ]
        return {name: rows_in_order[name].combine_chunks() for name in names}, lacking

    def rows(self, file: DataFile, rows: Sequence[int], names: Sequence[str]) -> pa.Table:
        """The columns and ROW_HOLES of these rows, in ascending order, read by row group. Texts are returned as
        dictionaries: a text that is stored once and repeated a million times would otherwise take a million copies
        in memory."""
        texts = [n for n in names if pa.types.is_string(self.types[n]) or pa.types.is_binary(self.types[n])]
        pieces = []
        with self._open(file) as source:
            footer = pq.ParquetFile(source)
            texts = [name for name in texts if name in footer.schema_arrow.names]
            parquet = pq.ParquetFile(source, metadata=footer.metadata, read_dictionary=texts)
            ends = 0
            for group in range(parquet.num_row_groups):
                begins, ends = ends, ends + parquet.metadata.row_group(group).num_rows
                within = [row - begins for row in rows if begins <= row < ends]
                if within:
                    if bytes_of(parquet.metadata, names, group) > MAX_BYTES:
                        raise Declined("values that were not sent are too large for the driver's memory")
                    # With a key's column, which every file has: a table of no column says how many rows it has, and is
                    # empty once some are taken.
                    read = parquet.read_row_group(group, columns=[self.key[0], *names, ROW_HOLES])
                    picked = read.take(pa.array(within, pa.int64()))
                    pieces.append(pa.table({n: self._column(picked, n) for n in [*names, ROW_HOLES]}))
        return pa.concat_tables(pieces)


def _opened(source: BinaryIO, file: DataFile, **options: Any) -> pq.ParquetFile:
    """Read the file's footer. Raises Declined if the driver should not read its rows."""
    parquet = pq.ParquetFile(source, **options)
    if _LEGACY_CALENDAR in (parquet.metadata.metadata or {}):
        raise Declined("a file of current has days of the Julian calendar")
    if parquet.metadata.num_rows != file.rows:
        raise Declined("a file of current has another number of rows than the log says")
    return parquet


def _rows_at_once(rows: int, size: int, sought: int) -> int:
    """The rows of a piece of a row group. Arrow hashes the sought keys again for each piece, so with many keys the
    pieces are larger, as far as they fit in memory."""
    return max(1, min(max(PIECE_ROWS, 5 * sought), PIECE_BYTES * rows // max(1, size)))


def group_bounds(footer: pq.FileMetaData, group: int, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The bounds of some columns of a row group, as far as the footer has them."""
    low, high = dict[str, Any](), dict[str, Any]()
    described = footer.row_group(group)
    for n in range(described.num_columns):
        column = described.column(n)
        if column.path_in_schema in names and column.is_stats_set and column.statistics.has_min_max:
            low[column.path_in_schema], high[column.path_in_schema] = column.statistics.min, column.statistics.max
    return low, high


def _is_flat(of: pa.DataType) -> bool:
    return bool(pa.types.is_string(of) or pa.types.is_binary(of) or pa.types.is_decimal(of))


def _with_dictionary(footer: pq.FileMetaData, names: Sequence[str], number: int) -> list[str]:
    """The paths of the named columns that the row group stores with a dictionary."""
    group = footer.row_group(number)
    columns = [group.column(n) for n in range(group.num_columns)]
    return [c.path_in_schema for c in columns if c.path_in_schema in names and c.has_dictionary_page]


def bytes_of(footer: pq.FileMetaData, names: Sequence[str], only: int | None = None) -> int:
    """The decoded size of some columns in bytes."""
    total = 0
    for number in range(footer.num_row_groups) if only is None else [only]:
        group = footer.row_group(number)
        for n in range(group.num_columns):
            column = group.column(n)
            if column.path_in_schema.partition(".")[0] in names or column.path_in_schema in names:
                total += column.total_uncompressed_size
    return total
