"""Few changes of a table: `Changes` without a Spark job, folded by the driver and committed through Delta's own log.

    staged files ── arrow_fold ──┬─► one Parquet file ─► history's commit
                       ▲         └─► one Parquet file, and the rows it stands for, by number ─► current's commit
    current's files ───┘ keys, and the values that unchanged columns keep

For a few rows Spark's planning, compiling and scheduling is nearly all of a merge, and there is one per table. What is
written here is what Spark would write: the same fold (see `arrow_fold` for why it is the same), one row per key, on
the same pinned version; the rows that it replaces are masked by deletion vectors, as MERGE masks them.

It is for what is certainly small and plain; `few_changes` says None to all else, which then goes the way of `Changes`:
chunks and sweeps, multisets, keys of floating point, columns that Delta calls otherwise, tables of many files or with
more keys than the driver should read.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tidemark import failpoints
from tidemark.errors import StagedFileDiffers, TidemarkError
from tidemark.formats.columns import staged_schema
from tidemark.formats.plan import PlannedBatch, PlannedFile
from tidemark.lsn import Lsn
from tidemark.names import ROW_COLUMNS, ROW_HOLES
from tidemark.schema.table import TableSchema
from tidemark.target import arrow_fold, data_files, delta_tables, lake_files
from tidemark.target.arrow_fold import Fold, Key
from tidemark.target.data_files import DataFile
from tidemark.target.delta_tables import PinnedTable, WrittenFile
from tidemark.target.staged_changes import missing_scalar

log = logging.getLogger(__name__)

MAX_ROWS: Final = 20_000  # unless Spark's configuration says otherwise:
ROWS_SETTING: Final = "spark.tidemark.driverFoldRows"  # 0: Spark folds everything
MAX_STAGED_BYTES: Final = 16 * 2**20  # as they lie there, and
MAX_BYTES: Final = 128 * 2**20  # as they are in memory
MAX_FILES: Final = 200
MAX_KEY_BYTES: Final = 32 * 2**20  # of current's key columns, decoded


# In the footer of a file whose days and times Spark wrote by the Julian calendar, as it can be told to.
_LEGACY_CALENDAR: Final = b"org.apache.spark.legacyDateTime"


class TooMuch(Exception):
    """What was found is more, or other, than the driver should take on by itself."""


def few_changes(
    session: SparkSession,
    lake: str,
    schemas: Sequence[TableSchema],
    batches: Sequence[PlannedBatch],
    current: PinnedTable | None,
    history: PinnedTable,
) -> FewChanges | None:
    """The changes, folded; None if it is Spark's to do.

    Spark also gets what could not be read here, since it says best, and in its own words, what is wrong with a file.
    """
    schema = schemas[-1]
    rows = sum(f.rows for b in batches for f in b.files)
    size = sum(f.bytes for b in batches for f in b.files)
    most = _most_rows(session)
    if most <= 0 or rows > most or size > MAX_STAGED_BYTES or any(b.claims or b.sweeps for b in batches):
        return None
    shape = staged_schema(schema)
    if current is None or not schema.key or not all(arrow_fold.is_plain_key(shape.field(k).type) for k in schema.key):
        return None
    if not data_files.is_plain(history) or not data_files.is_plain(current):
        return None
    try:
        changes = _staged(session, lake, schemas, batches)
        fold = arrow_fold.fold_changes(
            changes, schema.key, [c.name for c in schema.columns], moved=any(b.moved for b in batches)
        )
        files = data_files.data_files(session, current)
        if files is None or len(files) > MAX_FILES:
            return None
        truncated = any(b.truncates for b in batches)
        target = _Target(session, current, files, fold.key, {name: shape.field(name).type for name in shape.names})
        # What a truncate removes needs no search; what lies before one may keep values all the same.
        target.find(set(fold.base) if truncated else {*fold.newest, *fold.base})
        if not truncated and target.at.keys() & fold.staying().keys() and _has_others(current, fold):
            return None
        values, lacking = target.values(fold)
    except TooMuch:
        return None
    except TidemarkError:
        raise
    except Exception as failed:  # nothing is written yet, so whatever it is, the other way is as right
        log.warning("%s: left to Spark, %s", schema.table, type(failed).__name__)
        return None
    return FewChanges(session, batches[-1].end_lsn, fold, fold.rows(values, lacking), target, truncated)


def _has_others(current: PinnedTable, fold: Fold) -> bool:
    """Whether current has columns that the changes know nothing of, since somebody added them there. An update leaves
    them as they are, and a row that is written anew would not."""
    return not {f.name for f in current.schema().fields} <= {*fold.columns, *ROW_COLUMNS, ROW_HOLES}


def _most_rows(session: SparkSession) -> int:
    setting = session.conf.get(ROWS_SETTING, None)
    try:
        return MAX_ROWS if setting is None else int(setting)
    except ValueError:
        log.warning("%s is not a number: %d rows count", ROWS_SETTING, MAX_ROWS)
        return MAX_ROWS


def _staged(
    session: SparkSession, lake: str, schemas: Sequence[TableSchema], batches: Sequence[PlannedBatch]
) -> pa.Table:
    """All changes in R1 order, in the newest version's shape. The bytes are those that were staged."""
    newest = staged_schema(schemas[-1])
    tables = [newest.empty_table()]
    versions = {schema.version: schema for schema in schemas}
    missing = {c.name: missing_scalar(c) for c in schemas[-1].columns if c.missing is not None}
    for file in (f for b in batches for f in b.files):
        tables.append(_aligned(_one(session, lake, file, versions[file.schema_version]), newest, missing))
    together = pa.concat_tables(tables)
    return together.take(pc.sort_indices(together, [("_commit_lsn", "ascending"), ("_ordinal", "ascending")]))


def _one(session: SparkSession, lake: str, file: PlannedFile, schema: TableSchema) -> pa.Table:
    content = lake_files.read_whole(session, f"{lake}/{file.path}", file.bytes)
    if (len(content), hashlib.sha256(content).hexdigest()) != (file.bytes, file.sha256):
        raise StagedFileDiffers(path=file.path, table=str(schema.table))
    parquet = pq.ParquetFile(pa.BufferReader(content))
    if sum(parquet.metadata.row_group(n).total_byte_size for n in range(parquet.num_row_groups)) > MAX_BYTES:
        raise TooMuch
    return parquet.read()


def _aligned(rows: pa.Table, newest: pa.Schema, missing: Mapping[str, pa.Scalar]) -> pa.Table:
    """What an older version lacks is NULL, as it was at the source, or what its rows have there by now."""
    is_row = pc.is_in(rows["_op"], pa.array(["insert", "update"]))
    columns = []
    for wanted in newest:
        if wanted.name in rows.column_names:
            columns.append(rows[wanted.name].cast(wanted.type))
        elif wanted.name in missing:
            columns.append(pc.if_else(is_row, missing[wanted.name], pa.scalar(None, wanted.type)))
        else:
            columns.append(pa.nulls(rows.num_rows, wanted.type))
    return pa.table(columns, schema=newest)


@dataclass(slots=True)
class _Target:
    """The rows of current's pinned version, by key: `at` is a file's number and the row's number in it."""

    session: SparkSession
    current: PinnedTable
    files: Sequence[DataFile]
    key: Sequence[str]
    types: Mapping[str, pa.DataType]
    at: dict[Key, list[tuple[int, int]]] = field(default_factory=dict)

    def find(self, keys: set[Key]) -> None:
        """Where rows of these keys are, in files that may have them by their bounds. Raises TooMuch."""
        left = MAX_KEY_BYTES
        keys_sought = [pa.array({key[n] for key in keys}) for n in range(len(self.key))] if keys else []
        for number, file in enumerate(self.files):
            if not keys or not self._may_hold(file, keys):
                continue
            with self._open(file) as source:
                parquet = pq.ParquetFile(source)
                left -= _bytes_of(parquet, self.key)
                if left < 0 or _LEGACY_CALENDAR in (parquet.metadata.metadata or {}):
                    raise TooMuch
                key_columns = [self._column(parquet.read(columns=[name]), name) for name in self.key]
            self._note(number, file, key_columns, keys_sought, keys)

    def _note(
        self,
        number: int,
        file: DataFile,
        key_columns: Sequence[pa.ChunkedArray],
        keys_sought: Sequence[pa.Array],
        keys: set[Key],
    ) -> None:
        if len(key_columns[0]) != file.rows:
            raise TooMuch  # the log says otherwise: nothing to build on
        alike = pa.array([True] * file.rows) if not keys_sought else None
        for column, values in zip(key_columns, keys_sought, strict=True):
            one = pc.is_in(arrow_fold.comparable(column), values.cast(arrow_fold.comparable(column).type))
            alike = one if alike is None else pc.and_(alike, one)
        rows = pc.indices_nonzero(alike).to_pylist()
        masked = data_files.masked_rows(self.session, self.current, file) if rows else set()
        some = pa.array(rows, pa.int64())
        for row, key in zip(rows, arrow_fold.keys_of([column.take(some) for column in key_columns]), strict=True):
            if key in keys and row not in masked:
                self.at.setdefault(key, []).append((number, row))

    def _may_hold(self, file: DataFile, keys: set[Key]) -> bool:
        """By the bounds of whole numbers; anything else in the log may be cut short or rounded."""
        for n, name in enumerate(self.key):
            low, high = file.low.get(name), file.high.get(name)
            bounded = pa.types.is_integer(self.types[name]) and isinstance(low, int) and isinstance(high, int)
            if bounded and not any(low <= key[n] <= high for key in keys):
                return False
        return True

    def _open(self, file: DataFile) -> Any:
        return lake_files.open_to_read(self.session, f"{self.current.path}/{file.path}", int(file.added.size()))

    def _column(self, file_rows: pa.Table, name: str) -> pa.ChunkedArray:
        """As the source's type is now; a file from before the column was added has nothing in it."""
        of = self.types.get(name, pa.list_(pa.string()))
        if name not in file_rows.column_names:
            return pa.chunked_array([pa.nulls(file_rows.num_rows, of)])
        return file_rows[name].cast(of)

    def values(self, fold: Fold) -> tuple[dict[str, pa.Array], list[frozenset[str]]]:
        """Per column that some change does not bring, its value of each key of `fold.base`, and for each of these keys
        the columns whose value current does not know either."""
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
            pieces.append(self._rows(self.files[number], rows, names))
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

    def _rows(self, file: DataFile, rows: Sequence[int], names: Sequence[str]) -> pa.Table:
        """These rows, read by the row groups that they lie in. Texts come as dictionaries: written once and repeated a
        million times, one would be a million of them in memory."""
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
                    if _bytes_of(parquet, names, group) > MAX_BYTES:
                        raise TooMuch
                    read = parquet.read_row_group(group, columns=[*names, ROW_HOLES])
                    picked = read.take(pa.array(within, pa.int64()))
                    pieces.append(pa.table({n: self._column(picked, n) for n in [*names, ROW_HOLES]}))
        return pa.concat_tables(pieces)


def _is_flat(of: pa.DataType) -> bool:
    return bool(pa.types.is_string(of) or pa.types.is_binary(of) or pa.types.is_decimal(of))


def _bytes_of(parquet: pq.ParquetFile, names: Sequence[str], only: int | None = None) -> int:
    """The decoded size of some columns."""
    total = 0
    for number in range(parquet.num_row_groups) if only is None else [only]:
        group = parquet.metadata.row_group(number)
        for n in range(group.num_columns):
            column = group.column(n)
            if column.path_in_schema.partition(".")[0] in names or column.path_in_schema in names:
                total += column.total_uncompressed_size
    return total


@dataclass(slots=True)
class FewChanges:
    """`rows` is every change, one row each; `there` knows the rows of current that they replace."""

    session: SparkSession
    end: Lsn
    fold: Fold
    rows: pa.Table
    there: _Target
    truncated: bool
    new_holes: bool = False

    def release(self) -> None:
        """Nothing is kept."""

    def move_history(self, history: PinnedTable, application: str) -> int:
        """Append every change, truncates as rows without a key. Returns the rows appended."""
        failpoints.reach("merge.before_history")
        rows = arrow_fold.history_of(self.rows, self.fold.columns)
        written = self._written(history, rows)
        count = delta_tables.append(self.session, history, None, application, self.end, written)
        failpoints.reach("merge.after_history")
        return count

    def move_current(self, application: str) -> dict[str, int]:
        """One commit that brings current to the end of the batches. Returns the rows inserted, updated, deleted."""
        failpoints.reach("merge.before_current")
        staying, rows = arrow_fold.current_of(self.fold, self.rows)
        self.new_holes = rows[ROW_HOLES].null_count < rows.num_rows
        masked: dict[int, list[int]] = {}
        if not self.truncated:
            for places in (self.there.at[key] for key in self.fold.newest if key in self.there.at):
                for number, row in places:
                    masked.setdefault(number, []).append(row)
        exchanged: list[tuple[DataFile, list[int] | None]]
        exchanged = [(self.there.files[number], sorted(of_file)) for number, of_file in sorted(masked.items())]
        if self.truncated:
            exchanged = [(file, None) for file in self.there.files]
        current = self.there.current
        data_files.exchange(self.session, current, exchanged, self._written(current, rows), application, self.end)
        failpoints.reach("merge.after_current")
        if self.truncated:
            return {"truncated": 1}
        updated = sum(key in self.there.at for key in staying)
        gone = sum(key in self.there.at for key in self.fold.newest) - updated
        return {"inserted": len(staying) - updated, "updated": updated, "deleted": gone}

    def _written(self, table: PinnedTable, rows: pa.Table) -> list[WrittenFile]:
        """One Parquet file in the table's folder, by the way that the drain writes its own; none of no rows."""
        if not rows.num_rows:
            return []
        sink = io.BytesIO()
        pq.write_table(rows, sink, compression="zstd", compression_level=1, use_dictionary=False, version="2.6")
        content = sink.getvalue()
        name = lake_files.write_new(self.session, table.path, content)
        between = dict(arrow_fold.bounds(rows, ["_commit_lsn", *self.fold.key]))
        return [WrittenFile(name, len(content), rows.num_rows, between)]
