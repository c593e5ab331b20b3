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
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tidemark import failpoints
from tidemark.errors import StagedFileDiffers, TidemarkError
from tidemark.formats.columns import row_schema, staged_schema
from tidemark.formats.manifest import StagedFile
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.lsn import Lsn
from tidemark.names import ROW_COLUMNS, ROW_HOLES
from tidemark.schema.table import TableSchema
from tidemark.target.chunks.first_load import WholeChunks
from tidemark.target.delta import data_files, delta_tables, hadoop_files
from tidemark.target.delta.data_files import DataFile
from tidemark.target.delta.delta_tables import PinnedPair, PinnedTable
from tidemark.target.driver import arrow_fold, columnar_merge
from tidemark.target.driver import small_files as crumbs
from tidemark.target.driver.arrow_fold import Fold
from tidemark.target.driver.columnar_merge import PlainChanges
from tidemark.target.driver.prefetch import ReadAhead
from tidemark.target.driver.small_files import Crumbs
from tidemark.target.driver.target_rows import MAX_BYTES, TargetRows, TooMuch
from tidemark.target.spark.staged_changes import PREFIXES, missing_scalar

log = logging.getLogger(__name__)

MAX_ROWS: Final = 20_000  # unless Spark's configuration says otherwise:
ROWS_SETTING: Final = "spark.tidemark.driverFoldRows"  # 0: Spark folds everything
PLAIN_FROM: Final = MAX_ROWS  # above it changes that are plain are folded as columns, see `plain_changes`
MAX_STAGED_BYTES: Final = 16 * 2**20  # as they lie there,
MAX_FILLED_BYTES: Final = 64 * 2**20  # of values that were not sent, filled into every change that lacks them, and
MAX_FILES: Final = 200
MAX_KEY_BYTES: Final = 512 * 2**20  # of current's key columns, decoded


def few_changes(
    session: SparkSession,
    lake: str,
    schemas: Sequence[TableSchema],
    batches: Sequence[PlannedBatch],
    tables: PinnedPair,
    known: WholeChunks | ReadAhead | None = None,
) -> FewChanges | PlainChanges | None:
    """The changes, folded; None if it is Spark's to do. `known` are the chunks that come with them, or, where none do,
    the changes themselves as they are being read.

    Spark also gets what could not be read here, since it says best, and in its own words, what is wrong with a file.
    """
    schema = schemas[-1]
    history, current = tables.history, tables.current
    whole = known if isinstance(known, WholeChunks) else None
    many = _are_many(schemas, batches)
    if current is None or not _are_few(session, schemas, batches, many=many):
        return None
    shape = staged_schema(schema)
    if not data_files.is_plain(history) or not data_files.is_plain(current):
        return None
    try:
        if many:
            if _has_others(current, [c.name for c in schema.columns]):
                return None
            staged = known.take(schema, batches) if isinstance(known, ReadAhead) else None
            staged = staged or columnar_merge.read_now(session, lake, schema, batches)
            return columnar_merge.plain_changes(session, lake, staged, current, whole)
        changes = _staged(session, lake, schemas, batches)
        fold = arrow_fold.fold_changes(
            changes, schema.key, [c.name for c in schema.columns], moved=any(b.moved for b in batches)
        )
        truncated = any(b.truncates for b in batches)
        if whole is not None:
            target = whole.there
        else:
            files = data_files.data_files(session, current)
            if files is None or len(files) > MAX_FILES:
                return None
            types = {name: shape.field(name).type for name in shape.names}
            target = TargetRows(session, current, files, fold.key, types, MAX_KEY_BYTES)
            # What a truncate removes needs no search; what lies before one may keep values all the same.
            target.find(set(fold.base) if truncated else {*fold.newest, *fold.base})
        if not truncated and target.at.keys() & fold.staying().keys() and _has_others(current, fold.columns):
            return None
        values, lacking = target.values(fold)
        if fold.bytes_filled(values) > MAX_FILLED_BYTES:
            return None
        rows_of_changes = fold.rows(values, lacking)
        replaced = [] if truncated else target.places(fold.newest.keys())
        gathered = crumbs.crumbs_of(target, row_schema(schema), replaced)
    except TooMuch:
        return None
    except TidemarkError:
        raise
    except Exception as failed:  # nothing is written yet, so whatever it is, the other way is as right
        log.warning("%s: left to Spark, %s", schema.table, type(failed).__name__)
        return None
    return FewChanges(session, batches[-1].end_lsn, fold, rows_of_changes, target, truncated, gathered, whole)


@contextmanager
def reading_ahead(
    session: SparkSession,
    lake: str,
    schemas: Sequence[TableSchema],
    batches: Sequence[PlannedBatch],
    tables: PinnedPair,
) -> Iterator[ReadAhead | None]:
    """The batches' changes are read beside the block, where `few_changes` is likely to want them as columns; None where
    it is not, or another table has the driver's memory. The tables may be still to be made."""
    there = [table for table in (tables.history, tables.current) if table is not None and table.exists]
    is_likely = _are_many(schemas, batches) and _are_few(session, schemas, batches, many=True)
    if not is_likely or tables.current is None or not all(data_files.is_plain(table) for table in there):
        yield None
        return
    try:
        columnar_merge.reserve_memory()
    except TooMuch:
        yield None
        return
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read ahead") as thread:
        schema = schemas[-1]
        ahead = ReadAhead(schema, batches, thread.submit(columnar_merge.staged_of, session, lake, schema, batches))
        try:
            yield ahead
        finally:
            ahead.let_go()


def _are_many(schemas: Sequence[TableSchema], batches: Sequence[PlannedBatch]) -> bool:
    """Whether they are folded as columns, if here."""
    rows = sum(f.rows for b in batches for f in b.files)
    return rows > PLAIN_FROM and columnar_merge.are_plain(schemas, batches)


def _are_few(
    session: SparkSession, schemas: Sequence[TableSchema], batches: Sequence[PlannedBatch], *, many: bool
) -> bool:
    """Whether their number and kind is the driver's, whatever the tables are."""
    rows = sum(f.rows for b in batches for f in b.files)
    size = sum(f.bytes for b in batches for f in b.files)
    most = _most_rows(session, columnar_merge.MAX_ROWS if many else MAX_ROWS)
    if most <= 0 or rows > most or any(b.claims or b.sweeps for b in batches):
        return False
    if size > (columnar_merge.MAX_STAGED_BYTES if many else MAX_STAGED_BYTES):
        return False
    schema = schemas[-1]
    shape = staged_schema(schema)
    return bool(schema.key) and all(arrow_fold.is_plain_key(shape.field(k).type) for k in schema.key)


def _has_others(current: PinnedTable, columns: Sequence[str]) -> bool:
    """Whether current has columns that the changes know nothing of, since somebody added them there. An update leaves
    them as they are, and a row that is written anew would not."""
    return not {f.name for f in current.schema().fields} <= {*columns, *ROW_COLUMNS, ROW_HOLES}


def _most_rows(session: SparkSession, usual: int) -> int:
    setting = session.conf.get(ROWS_SETTING, None)
    if MAX_ROWS <= 0:
        return MAX_ROWS
    try:
        return usual if setting is None else int(setting)
    except ValueError:
        log.warning("%s is not a number: %d rows count", ROWS_SETTING, usual)
        return usual


def _staged(
    session: SparkSession, lake: str, schemas: Sequence[TableSchema], batches: Sequence[PlannedBatch]
) -> pa.Table:
    """All changes in R1 order, in the newest version's shape. The bytes are those that were staged."""
    newest = staged_schema(schemas[-1])
    tables = [newest.empty_table()]
    versions = {schema.version: schema for schema in schemas}
    missing = {c.name: missing_scalar(c) for c in schemas[-1].columns if c.missing is not None}
    left = MAX_BYTES
    for file in (f for b in batches for f in b.files):
        version = versions[file.schema_version]
        read = _one(session, lake, file, version, left)
        left -= read.nbytes
        called = names_of(version, read, schemas[-1])
        tables.append(_aligned(called, newest, missing))
    together = pa.concat_tables(tables)
    return together.take(pc.sort_indices(together, [("_commit_lsn", "ascending"), ("_ordinal", "ascending")]))


def _one(session: SparkSession, lake: str, file: StagedFile, schema: TableSchema, most_bytes: int) -> pa.Table:
    content = hadoop_files.read_whole(session, f"{lake}/{file.path}", file.bytes)
    if (len(content), hashlib.sha256(content).hexdigest()) != (file.bytes, file.sha256):
        raise StagedFileDiffers(path=file.path, table=str(schema.table))
    parquet = pq.ParquetFile(pa.BufferReader(content))
    if sum(parquet.metadata.row_group(n).total_byte_size for n in range(parquet.num_row_groups)) > most_bytes:
        raise TooMuch
    return parquet.read()


def names_of(version: TableSchema, rows: pa.Table, newest: TableSchema) -> pa.Table:
    """Staged rows of a version with the columns' newest names, in the marks too; without those that the newest version
    has not."""
    names: dict[str, str] = {}
    for column in newest.columns:
        own = newest.column_in(version, column)
        if own is not None:
            names[own.name] = column.name
    own_names = {column.name for column in version.columns}
    if all(names.get(name) == name for name in own_names):
        return rows
    kept = [name for name in rows.column_names if name not in own_names or name in names]
    rows = rows.select(kept).rename_columns([names.get(name, name) if name in own_names else name for name in kept])
    if "_old_key" in rows.column_names:
        keys = rows["_old_key"].combine_chunks()
        fields = [names.get(field.name, field.name) for field in keys.type]
        renamed = pa.StructArray.from_arrays(keys.flatten(), fields, mask=keys.is_null())
        rows = rows.set_column(rows.column_names.index("_old_key"), "_old_key", renamed)
    return _with_marks(rows, {before + own: before + name for own, name in names.items() for before in PREFIXES})


def _with_marks(rows: pa.Table, names: Mapping[str, str]) -> pa.Table:
    """The rows with other names in their marks."""
    unchanged, texts = rows["_unchanged"], rows["_text"]
    if unchanged.null_count < rows.num_rows:
        lists = [m if m is None else [names.get(name, name) for name in m] for m in unchanged.to_pylist()]
        at = rows.column_names.index("_unchanged")
        rows = rows.set_column(at, "_unchanged", pa.array(lists, unchanged.type))
    if texts.null_count < rows.num_rows:
        maps = [m if m is None else [(names.get(name, name), text) for name, text in m] for m in texts.to_pylist()]
        rows = rows.set_column(rows.column_names.index("_text"), "_text", pa.array(maps, texts.type))
    return rows


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
class FewChanges:
    """`rows` is every change, one row each; `there` knows the rows of current that they replace. `crumbs` are
    small files whose rows are written anew beside them. `whole` are chunks whose files are added besides, none of whose
    rows a change touches."""

    session: SparkSession
    end: Lsn
    fold: Fold
    rows: pa.Table
    there: TargetRows
    truncated: bool
    crumbs: Crumbs
    whole: WholeChunks | None = None
    new_holes: bool = False

    def release(self) -> None:
        """Nothing is kept."""

    def move_history(self, history: PinnedTable, application: str) -> int:
        """Append every change, truncates as rows without a key. Returns the rows appended."""
        failpoints.reach("merge.before_history")
        rows = arrow_fold.history_of(self.rows, self.fold.columns)
        written = data_files.write_rows(self.session, history, rows, self.fold.key)
        written += [] if self.whole is None else self.whole.files_of_history(history)
        count = delta_tables.append(self.session, history, None, application, self.end, written)
        failpoints.reach("merge.after_history")
        return count

    def move_current(self, application: str) -> dict[str, int]:
        """One commit that brings current to the end of the batches. Returns the rows inserted, updated, deleted."""
        failpoints.reach("merge.before_current")
        staying, rows = arrow_fold.current_of(self.fold, self.rows)
        self.new_holes = rows[ROW_HOLES].null_count < rows.num_rows
        exchanged: list[tuple[DataFile, Sequence[int] | None]]
        if self.truncated:
            exchanged = [(file, None) for file in self.there.files]
        else:
            exchanged = self.crumbs.exchanged(self.there.places(self.fold.newest.keys()))
            rows = pa.concat_tables([rows, self.crumbs.rows])
        current = self.there.current
        written = data_files.write_rows(self.session, current, rows, self.fold.key)
        written += [] if self.whole is None else self.whole.files_of_current()
        data_files.exchange(self.session, current, exchanged, written, application, self.end)
        failpoints.reach("merge.after_current")
        if self.truncated:
            return {"truncated": 1}
        updated = sum(key in self.there.at for key in staying)
        gone = sum(key in self.there.at for key in self.fold.newest) - updated
        added = 0 if self.whole is None else self.whole.rows
        return {"inserted": len(staying) - updated + added, "updated": updated, "deleted": gone}
