"""The rows of one version of current that have certain keys, found by the driver: keys -> file and number of the row.

Reads the key's columns of the files that may hold them by their bounds, and of single rows the columns asked for.
Raises TooMuch where that is more, or something other, than the driver should take on by itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tidemark.names import ROW_HOLES
from tidemark.target.delta import data_files, hadoop_files
from tidemark.target.delta.data_files import DataFile
from tidemark.target.delta.delta_tables import PinnedTable
from tidemark.target.driver import arrow_fold
from tidemark.target.driver.arrow_fold import Fold, Key
from tidemark.target.driver.key_set import KeySet

MAX_BYTES: Final = 128 * 2**20  # of a row group's columns, decoded

MAX_COLUMN_BYTES: Final = 256 * 2**20  # of columns that are read of all rows of a row group, decoded

# In the footer of a file whose days and times Spark wrote by the Julian calendar, as it can be told to.
_LEGACY_CALENDAR: Final = b"org.apache.spark.legacyDateTime"


class TooMuch(Exception):
    """What was found is more, or other, than the driver should take on by itself."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a data file: its rows are numbered from `begins` on in the file, and its columns are between `low`
    and `high`, as far as that is known."""

    file: DataFile
    number: int
    begins: int
    rows: int
    low: Mapping[str, Any]
    high: Mapping[str, Any]


@dataclass(slots=True)
class TargetRows:
    """The rows of current's pinned version, by key: `at` is a file's number and the row's number in it. `left` is how
    many bytes of keys may still be read, `sought` the keys that were looked for, `footers` those of the files
    whose `groups` were asked for."""

    session: SparkSession
    current: PinnedTable
    files: Sequence[DataFile]
    key: Sequence[str]
    types: Mapping[str, pa.DataType]
    left: int
    at: dict[Key, list[tuple[int, int]]] = field(default_factory=dict)
    sought: set[Key] = field(default_factory=set)
    footers: dict[str, pq.FileMetaData] = field(default_factory=dict)

    def find(self, keys: set[Key]) -> None:
        """Where rows of these keys are, in files that may have them by their bounds. Raises TooMuch."""
        self.sought |= keys
        if not keys:
            return
        sought = _Sought(keys, [sorted({key[n] for key in keys}) for n in range(len(self.key))])
        for number, file in enumerate(self.files):
            if self._may_hold(sought, file.low.get, file.high.get):
                self._note(number, file, sought)

    def may_meet(self, file: DataFile, keys: KeySet) -> bool:
        """Whether the file may have one of the keys, by the bounds of whole numbers on both sides."""
        for name, (least, most) in keys.bounds(self.key).items():
            low, high = file.low.get(name), file.high.get(name)
            if isinstance(low, int) and isinstance(high, int) and (high < least or most < low):
                return False
        return True

    def places(self, keys: Collection[Key]) -> list[tuple[DataFile, list[int]]]:
        """The rows of these keys, all of which were looked for, by their files."""
        if not self.sought.issuperset(keys):
            raise ValueError("a key that nobody looked for")
        of_files: dict[int, list[int]] = {}
        for number, row in (place for key in keys for place in self.at.get(key, ())):
            of_files.setdefault(number, []).append(row)
        return [(self.files[number], sorted(rows)) for number, rows in sorted(of_files.items())]

    def keys(self, file: DataFile) -> list[pa.ChunkedArray]:
        """The key's columns of all rows of the file, masked ones included. Raises TooMuch."""
        with self._open(file) as source:
            parquet = self._known(pq.ParquetFile(source))
            self._count(parquet)
            return [self._column(parquet.read(columns=[name]), name) for name in self.key]

    def groups(self, file: DataFile) -> list[RowGroup]:
        """The file's row groups, with what its footer says of their keys. Raises TooMuch."""
        with self._open(file) as source:
            parquet = self._known(pq.ParquetFile(source))
        if parquet.metadata.num_rows != file.rows:
            raise TooMuch("the log says otherwise")
        self.footers[file.path] = parquet.metadata
        begins, groups = 0, []
        for number in range(parquet.num_row_groups):
            rows = parquet.metadata.row_group(number).num_rows
            groups.append(RowGroup(file, number, begins, rows, *_bounds_of(parquet, number)))
            begins += rows
        return groups

    def keys_of(self, group: RowGroup) -> list[pa.ChunkedArray]:
        """The key's columns of all rows of one of `groups`, masked ones included. Raises TooMuch."""
        self.left -= bytes_of(self.footers[group.file.path], self.key, group.number)
        if self.left < 0:
            raise TooMuch("many keys")
        return list(self.columns(group, self.key).values())

    def columns(
        self, group: RowGroup, names: Sequence[str], rows: pa.Array | None = None
    ) -> dict[str, pa.ChunkedArray]:
        """These columns of all rows of one of `groups`, masked ones included, or of `rows`, numbered within it. What a
        file repeats stays a dictionary until the rows are taken. Raises TooMuch."""
        footer = self.footers[group.file.path]
        if bytes_of(footer, names, group.number) > MAX_COLUMN_BYTES:
            raise TooMuch("a large column")
        repeated = [] if rows is None else _with_dictionary(footer, names, group.number)
        with self._open(group.file) as source:
            parquet = pq.ParquetFile(source, metadata=footer, read_dictionary=repeated)
            there = [name for name in names if name in parquet.schema_arrow.names]
            # Of no column it would not say how many rows there are.
            read = parquet.read_row_group(group.number, columns=there or [self.key[0]])
            read = read if rows is None else read.take(rows)
            return {name: self._column(read, name) for name in names}

    def whole(self, file: DataFile, shape: pa.Schema, most_bytes: int) -> pa.Table:
        """All rows of the file, masked ones included, in this shape. Raises TooMuch where they have more bytes."""
        with self._open(file) as source:
            parquet = self._known(pq.ParquetFile(source))
            if parquet.metadata.num_rows != file.rows:
                raise TooMuch("the log says otherwise")
            if bytes_of(parquet.metadata, shape.names) > most_bytes:
                raise TooMuch("large values")
            read = parquet.read(columns=[name for name in shape.names if name in parquet.schema_arrow.names])
        return arrow_fold.in_shape(read, shape)

    def _known(self, parquet: pq.ParquetFile) -> pq.ParquetFile:
        if _LEGACY_CALENDAR in (parquet.metadata.metadata or {}):
            raise TooMuch
        return parquet

    def _count(self, parquet: pq.ParquetFile, only: int | None = None) -> None:
        self.left -= bytes_of(parquet.metadata, self.key, only)
        if self.left < 0:
            raise TooMuch

    def _note(self, number: int, file: DataFile, sought: _Sought) -> None:
        """The file's rows that have one of the keys: by row groups, since a file may be as large as it likes."""
        with self._open(file) as source:
            parquet = self._known(pq.ParquetFile(source))
            if parquet.metadata.num_rows != file.rows:
                raise TooMuch  # the log says otherwise: nothing to build on
            masked: set[int] | None = None
            ends = 0
            for group in range(parquet.num_row_groups):
                begins, ends = ends, ends + parquet.metadata.row_group(group).num_rows
                low, high = _bounds_of(parquet, group)
                if not self._may_hold(sought, low.get, high.get):
                    continue
                self._count(parquet, group)
                columns = [self._column(parquet.read_row_group(group, columns=[name]), name) for name in self.key]
                for row, key in sought.among(columns):
                    masked = data_files.masked_rows(self.session, self.current, file) if masked is None else masked
                    if begins + row not in masked:
                        self.at.setdefault(key, []).append((number, begins + row))

    def _may_hold(self, sought: _Sought, low: Callable[[str], Any], high: Callable[[str], Any]) -> bool:
        """By the bounds of whole numbers; anything else in the log may be cut short or rounded."""
        for n, name in enumerate(self.key):
            least, most = low(name), high(name)
            bounded = pa.types.is_integer(self.types[name]) and isinstance(least, int) and isinstance(most, int)
            if bounded and not sought.has_between(n, least, most):
                return False
        return True

    def _open(self, file: DataFile) -> Any:
        return hadoop_files.open_to_read(self.session, f"{self.current.path}/{file.path}", file.bytes)

    def _column(self, file_rows: pa.Table, name: str) -> pa.ChunkedArray:
        """As the source's type is now; a file from before the column was added has nothing in it."""
        of = self.types.get(name, pa.list_(pa.string()))
        if name not in file_rows.column_names:
            return pa.chunked_array([pa.nulls(file_rows.num_rows, of)])
        return file_rows[name].cast(of)

    def values(self, fold: Fold) -> tuple[dict[str, pa.Array], list[frozenset[str]]]:
        """Per column that some change does not bring, its value of each key of `fold.base`, and for each of these keys
        the columns whose value current does not know either. Raises TooMuch."""
        names = fold.unchanged()
        if not names or not fold.base:
            return {}, []
        if any(not _is_flat(self.types[name]) for name in names):
            raise TooMuch
        pieces: list[pa.Table] = []
        number_in_parts: dict[tuple[int, int], int] = {}
        first = {key: self.at[key][0] for key in fold.base if key in self.at}
        for number in sorted({file for file, _ in first.values()}):
            rows = sorted({row for file, row in first.values() if file == number})
            begins = sum(picked_rows.num_rows for picked_rows in pieces)
            number_in_parts |= {(number, row): begins + n for n, row in enumerate(rows)}
            pieces.append(self.rows(self.files[number], rows, names))
            if sum(piece.nbytes for piece in pieces) > MAX_BYTES:
                raise TooMuch("large values")
        shape = pa.schema([*((name, self.types[name]) for name in names), (ROW_HOLES, pa.list_(pa.string()))])
        rows_picked = pa.concat_tables([shape.empty_table(), *pieces]).combine_chunks()
        places = [number_in_parts.get(first[key]) if key in first else None for key in fold.base]
        rows_in_order = rows_picked.take(pa.array(places, pa.int64()))
        everything = frozenset(names)
        holes = rows_in_order[ROW_HOLES].to_pylist()
        lacking = [
            everything if place is None else frozenset(hole or ()) for place, hole in zip(places, holes, strict=True)
        ]
        return {name: rows_in_order[name].combine_chunks() for name in names}, lacking

    def rows(self, file: DataFile, rows: Sequence[int], names: Sequence[str]) -> pa.Table:
        """The columns, and ROW_HOLES, of these rows, which ascend; read by the row groups that they lie in. Texts come
        as dictionaries: written once and repeated a million times, one would be a million of them in memory."""
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
                        raise TooMuch
                    # With a key's column, which every file has: a table of no column says how many rows it has, and is
                    # empty once some are taken.
                    read = parquet.read_row_group(group, columns=[self.key[0], *names, ROW_HOLES])
                    picked = read.take(pa.array(within, pa.int64()))
                    pieces.append(pa.table({n: self._column(picked, n) for n in [*names, ROW_HOLES]}))
        return pa.concat_tables(pieces)


@dataclass(frozen=True, slots=True)
class _Sought:
    """The keys that are looked for, and the values of each of their columns in order."""

    keys: set[Key]
    values: Sequence[Sequence[Any]]

    def has_between(self, column: int, low: int, high: int) -> bool:
        values = self.values[column]
        at = bisect_left(values, low)
        return at < len(values) and values[at] <= high

    def among(self, columns: Sequence[pa.ChunkedArray]) -> Iterator[tuple[int, Key]]:
        """Those of the rows that have one of the keys, by their numbers."""
        alike: Any = None
        for column, values in zip(columns, self.values, strict=True):
            comparable = arrow_fold.comparable(column)
            one = pc.is_in(comparable, pa.array(values).cast(comparable.type))
            alike = one if alike is None else pc.and_(alike, one)
        rows = pc.indices_nonzero(alike)
        keys = arrow_fold.keys_of([column.take(rows) for column in columns])
        return ((row, key) for row, key in zip(rows.to_pylist(), keys, strict=True) if key in self.keys)


def _bounds_of(parquet: pq.ParquetFile, group: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Between which values a row group's columns are, as far as its footer says."""
    low, high = dict[str, Any](), dict[str, Any]()
    described = parquet.metadata.row_group(group)
    for n in range(described.num_columns):
        column = described.column(n)
        if column.is_stats_set and column.statistics.has_min_max:
            low[column.path_in_schema], high[column.path_in_schema] = column.statistics.min, column.statistics.max
    return low, high


def _is_flat(of: pa.DataType) -> bool:
    return bool(pa.types.is_string(of) or pa.types.is_binary(of) or pa.types.is_decimal(of))


def _with_dictionary(footer: pq.FileMetaData, names: Sequence[str], number: int) -> list[str]:
    """The columns, by their paths, of which a row group keeps each value once."""
    group = footer.row_group(number)
    columns = [group.column(n) for n in range(group.num_columns)]
    return [c.path_in_schema for c in columns if c.path_in_schema in names and c.has_dictionary_page]


def bytes_of(footer: pq.FileMetaData, names: Sequence[str], only: int | None = None) -> int:
    """The decoded size of some columns."""
    total = 0
    for number in range(footer.num_row_groups) if only is None else [only]:
        group = footer.row_group(number)
        for n in range(group.num_columns):
            column = group.column(n)
            if column.path_in_schema.partition(".")[0] in names or column.path_in_schema in names:
                total += column.total_uncompressed_size
    return total
