"""Merges the changes of some batches of one table with Spark: history's append, and current's MERGE.

Every value that depends on the target comes from one pinned version of current: the values of unchanged columns, and
the number of copies of a row in a multiset. That version carries the position just before these changes. So both
commits depend only on that version and on the staged files, and a second attempt computes the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidemark import failpoints
from tidemark.formats.columns import row_schema
from tidemark.formats.manifest import StagedFile
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.lsn import Lsn
from tidemark.names import ORDER_COLUMNS, ROW_COLUMNS, ROW_HOLES
from tidemark.target.chunks.first_load import FirstLoad
from tidemark.target.delta import data_files, delta_tables
from tidemark.target.delta.delta_tables import PinnedTable, WrittenFile
from tidemark.target.driver.change_reader import StagedTable
from tidemark.target.driver.history_files import StagedHistoryFiles, as_staged, copy_to_history
from tidemark.target.spark import fold
from tidemark.target.spark.staged_changes import read_changes

# Staged bytes per appended file. Staged and written Parquet files of the same rows have about the same size.
FILE_BYTES: Final = 64 * 2**20

# The `_op` of the row that replaces several rows of one key.
_REPLACEMENT: Final = "anew"

# Changes up to both limits are broadcast, so that current's rows need not be shuffled.
SMALL_ROWS: Final = 100_000
SMALL_BYTES: Final = 8 * 2**20  # as staged

# Current is read as a whole for the values of unchanged columns if it has no more files than this.
FEW_FILES: Final = 16


class Changes:
    """The changes of the next batches, merged by Spark.

    `current` is pinned at the position just before the batches, or None if the table has no current. `few_rows`:
    planning takes longer than computing. `load` may be set to a first load whose files go into the same commits.
    """

    def __init__(
        self,
        table: StagedTable,
        batches: Sequence[PlannedBatch],
        current: PinnedTable | None,
        *,
        few_rows: bool,
    ) -> None:
        self.table = table
        self.session = table.session
        self.few_rows = few_rows
        self.load: FirstLoad | None = None
        self.lake = table.lake
        self.schemas = table.schemas
        self.schema = table.schema
        self.names = [c.name for c in self.schema.columns]
        # The columns in which rows of the source can differ: all but dropped ones. They identify a row without a key.
        self.source_names = [c.name for c in self.schema.columns if c.name not in self.schema.dropped]
        self.batches = batches
        self.current = current
        self.end: Lsn = batches[-1].end_lsn
        self.multiset = self.schema.is_multiset
        self.moved = any(b.moved for b in batches)
        self.unchanged = any(b.unchanged for b in batches)
        self.truncated = any(b.truncates for b in batches)
        self.may_truncate = self.truncated
        self.new_holes = False
        self._cached: list[DataFrame] = []

    def release(self) -> None:
        # The newest frame first: releasing an older frame would make Spark plan the newer frames again.
        for frame in reversed(self._cached):
            frame.unpersist()

    @property
    def are_small(self) -> bool:
        """Whether the changes and chunks are small enough to be broadcast to every executor."""
        claims = [c for b in self.batches for c in b.claims]
        rows = sum(b.rows for b in self.batches)
        size = sum(f.bytes for b in self.batches for f in b.files) + sum(f.bytes for c in claims for f in c.files)
        return rows <= SMALL_ROWS and size <= SMALL_BYTES

    # --- frames ---------------------------------------------------------------------------------------------------

    @cached_property
    def staged(self) -> DataFrame:
        """All changes as they were staged, including truncates."""
        return read_changes(self.session, self.lake, self.schemas, self.batches)

    @cached_property
    def last_truncate(self) -> tuple[int, int] | None:
        """The order key of the last truncate; only one row comes to the driver."""
        if not self.truncated:
            return None
        truncates = self.staged.where(F.col("_op") == "truncate")
        newest = truncates.agg(F.max(F.struct(*ORDER_COLUMNS)).alias("newest")).first()
        if newest is None or newest["newest"] is None:
            return None
        return newest["newest"]["_commit_lsn"], newest["newest"]["_ordinal"]

    @cached_property
    def rows(self) -> DataFrame:
        """All changes but truncates, one key each, unchanged values filled in.

        Filled rows are cached for the second commit. They cost windows and joins with the target, and a MERGE that
        reads them twice must get the same rows.
        """
        single = self._single(self.staged)
        names = self._unchanged_names(self.staged)
        if not names:
            return single.transform(fold.without_holes)
        return self._computed_once(single.transform(self._fill(single, names)))

    @property
    def additions(self) -> DataFrame | None:
        """The rows that chunks add to the changes, see `spark_chunk_merge`. None without chunks."""
        return None

    def _single(self, staged: DataFrame) -> DataFrame:
        """All staged changes except truncates, split so that each row has one key."""
        identity = self.names if self.multiset else self.schema.key
        changes = staged.where(F.col("_op") != "truncate") if self.may_truncate else staged
        return changes.transform(
            fold.split_identity(identity, self.names, moved=self.moved, multiset=self.multiset)
        ).transform(fold.mark_above(self.last_truncate))

    def _fill(self, changes: DataFrame, unchanged: Sequence[str]) -> fold.Transform:
        before = self._base_rows(changes)
        return fold.fill_unchanged(
            self.schema.key, unchanged, moved=self.moved, truncated=self.truncated, target=before, small=self.are_small
        )

    def _computed_once(self, frame: DataFrame) -> DataFrame:
        """Cache the frame, so that it is computed once, until `release`.

        A frame of few rows is checkpointed, which also drops its plan: planning it again for each later frame took two
        thirds of a small merge. If the executor with the checkpoint is lost, the merge fails and is repeated. A frame
        of many rows is persisted, so that Spark can compute lost parts again.
        """
        if self.few_rows:
            return frame.localCheckpoint(eager=False)
        self._cached.append(frame.persist())
        return frame

    def _base_rows(self, changes: DataFrame) -> DataFrame | None:
        """The rows of current that unchanged values may come from. Of a large table, only some files are read."""
        if self.current is None or self.current.files == 0:
            return None
        if self.current.files <= FEW_FILES:
            return delta_tables.rows(self.current)
        keys = changes.where(F.col("_unchanged").isNotNull() | F.col(fold.INHERITS).isNotNull())
        keys = keys.select(*[fold.column(k) for k in self.schema.key])
        keys = F.broadcast(keys) if self.are_small else keys
        return delta_tables.rows_in_files_of(self.session, self.current, keys, self.schema.key)

    def _unchanged_names(self, staged: DataFrame) -> list[str]:
        """The columns that some change did not send, mostly one or two."""
        if not self.unchanged:
            return []
        rows = staged.select(F.explode("_unchanged").alias("name")).distinct().collect()
        return sorted(row["name"] for row in rows)

    # --- history --------------------------------------------------------------------------------------------------

    def move_history(self, history: PinnedTable, application: str) -> int:
        """Append every change, truncates as rows without a key. Returns the rows appended.

        Staged files whose rows are history's rows are copied into its folder, so their rows are not encoded again.
        """
        kept = self._as_staged(history)
        computed_files = kept.computed_files(self.batches)
        frames = self._computed_frames(kept, computed_files, history.schema())
        frame: DataFrame | None = None
        if frames:
            frame = reduce(DataFrame.unionByName, frames).coalesce(self._files_of(computed_files))
        failpoints.reach("merge.before_history")
        copied_files = [copy_to_history(self.table, history, b, f) for b, f in kept.files]
        copied_files += [] if self.load is None else self.load.files_of_history(history)
        count = delta_tables.append(self.session, history, frame, application, self.end, copied_files)
        failpoints.reach("merge.after_history")
        return count

    def _files_of(self, staged: Sequence[StagedFile]) -> int:
        """The number of files to write for the changes of these staged files and for all chunks."""
        of_chunks = sum(f.bytes for b in self.batches for c in b.claims for f in c.files)
        return max(1, -(-(sum(f.bytes for f in staged) + of_chunks) // FILE_BYTES))

    def _computed_frames(
        self, kept: StagedHistoryFiles, computed_files: Sequence[StagedFile], shape: StructType
    ) -> list[DataFrame]:
        """The rows that history gets from `computed_files`, which are not copied, and from chunks, in its shape.

        Returns no frame if there are certainly no such rows.
        """
        frames = []
        if computed_files:
            is_computed = kept.is_computed()
            frames.append(select_columns_of(self.rows.where(is_computed), shape))
            if self.truncated:
                truncates = self.staged.where((F.col("_op") == "truncate") & is_computed)
                frames.append(select_columns_of(truncates, shape))
        if self.additions is not None:
            frames.append(select_columns_of(self.additions, shape))
        return frames

    def _as_staged(self, history: PinnedTable) -> StagedHistoryFiles:
        """The staged files that can be copied to history.

        There are none for a multiset, whose updates are two rows, for a history with column mapping, whose files have
        other column names, and on `public_path`, which cannot add files.
        """
        if self.multiset or history.is_mapped or history.logged is not None:
            return StagedHistoryFiles()
        versions = {schema.version for schema in self.schemas if schema.is_read_as(self.schema)}
        return as_staged(self.batches, versions)

    # --- current --------------------------------------------------------------------------------------------------

    def move_current(self, application: str) -> dict[str, int]:
        """One commit that brings current to the end of the batches. Returns the rows inserted, updated, deleted."""
        failpoints.reach("merge.before_current")
        counted = self._multiset(application) if self.multiset else self._keyed(application)
        failpoints.reach("merge.after_current")
        return counted

    def _keyed(self, application: str) -> dict[str, int]:
        assert self.current is not None
        newest = self._newest()
        self.new_holes = self.unchanged and not newest.where(F.col(ROW_HOLES).isNotNull()).isEmpty()
        removes = F.col("_op").isin("delete", "sweep")
        if self.load is not None:
            counted = self._exchange(self.load, newest, application)
        elif self.truncated or self._is_empty:
            counted = self._load_rows(newest.where(~removes), application)
        else:
            columns = [*self.names, *ROW_COLUMNS, ROW_HOLES]
            values = {name: fold.column(name, "s") for name in columns}
            source = newest.select(*[fold.column(name) for name in columns], "_op")
            same_key = fold.all_of([fold.column(k, "t") == fold.column(k, "s") for k in self.schema.key])
            if self.narrowed is not None:
                same_key &= self.narrowed
            if self.duplicate_keys is not None:
                source = source.transform(self._replace_duplicates(self.duplicate_keys))
                same_key &= F.col("s._op") != _REPLACEMENT
            counted = delta_tables.merge(
                self.session,
                self.current,
                F.broadcast(source) if self.are_small else source,
                on=same_key,
                delete=F.col("s._op").isin("delete", "sweep"),
                update=values,
                insert=~F.col("s._op").isin("delete", "sweep"),
                insert_values=values,
                application=application,
                end=self.end,
            )
        return counted

    def _exchange(self, load: FirstLoad, newest: DataFrame, application: str) -> dict[str, int]:
        """Commit the rows together with the chunk files of a first load. Their keys come to the driver; `first_load`
        limits them."""
        assert self.current is not None
        newest = self._computed_once(newest)
        shape = row_schema(self.schema)
        removed = ["delete", "sweep"]
        keys_and_ops = newest.select(*[fold.column(k) for k in self.schema.key], "_op").toArrow()
        stays = np.asarray(pc.invert(pc.is_in(keys_and_ops["_op"], pa.array(removed))).to_numpy(), np.bool_)
        found_rows = load.target.find([keys_and_ops[k].cast(shape.field(k).type) for k in self.schema.key])
        masked = load.target.by_file(found_rows)
        added: list[WrittenFile | DataFrame] = [*load.files_of_current()]
        if stays.any():
            staying = select_columns_of(newest.where(~F.col("_op").isin(removed)), self.current.schema())
            added.append(staying.coalesce(self._files_of([f for b in self.batches for f in b.files])))
        data_files.exchange(self.session, load.target.current, masked, added, application, self.end)
        updated = int((found_rows.is_there & stays).sum())
        deleted = int((found_rows.is_there & ~stays).sum())
        return {"inserted": int(stays.sum()) - updated + load.rows, "updated": updated, "deleted": deleted}

    @property
    def _is_empty(self) -> bool:
        """Whether current is empty until the commit. On `public_path` another driver may add rows before the commit."""
        return self.current is not None and self.current.logged is None and self.current.files == 0

    @property
    def narrowed(self) -> Column | None:
        """A condition on the target only (alias t), by which Delta skips files. None if there is no such condition.

        It holds for every row of the target whose key the changes have.
        """
        return None

    @property
    def duplicate_keys(self) -> DataFrame | None:
        """Keys that current has in more than one row. None unless a comparison has searched for them."""
        return None

    def _replace_duplicates(self, duplicate_keys: DataFrame) -> fold.Transform:
        """Replace the update of a duplicate key by a delete and an insert, since an update would keep all its rows."""

        def transform(source: DataFrame) -> DataFrame:
            marked = source.join(
                duplicate_keys.withColumn("__tidemark_doubled", F.lit(True)), list(self.schema.key), "left"
            )
            is_row = ~F.col("_op").isin("delete", "sweep") & F.col("__tidemark_doubled").isNotNull()
            ops = F.when(is_row, F.array(F.lit("delete"), F.lit(_REPLACEMENT))).otherwise(F.array("_op"))
            return marked.withColumn("_op", F.explode(ops)).drop("__tidemark_doubled")

        return transform

    def _newest(self) -> DataFrame:
        """The newest change of each key, with ROW_HOLES. Removals are included."""
        newest = self.rows.where(F.col(fold.ABOVE)).transform(fold.newest_per_key(self.schema.key))
        return newest.transform(with_row_holes)

    def _multiset(self, application: str) -> dict[str, int]:
        assert self.current is not None
        columns = [*self.source_names, *ROW_COLUMNS]
        net = self._net()
        if self.truncated or self._is_empty:
            copies = net.transform(fold.copies_after(self.source_names, None))
            return self._load_rows(copies.where(F.col(fold.COPY) > 0), application)
        current = delta_tables.rows(self.current)
        copies = net.transform(fold.copies_after(self.source_names, current, small=self.are_small))
        types = {f.name: f.dataType for f in self.rows.schema.fields}
        # Delta evaluates the condition again after its outer join, in which a change without a match has NULL in all of
        # current's columns. Without `is_there` that would count as a row of current with nothing but NULLs, a valid
        # row.
        is_there = F.col("t._commit_lsn").isNotNull() | ~fold.is_nothing(self.source_names, types, "t")
        same = fold.same_row(self.source_names, types, "t", "s")
        matches: Column = (F.col(f"s.{fold.COPY}") == 0) & same & is_there
        return delta_tables.merge(
            self.session,
            self.current,
            copies.select(*[fold.column(name) for name in columns], fold.COPY),
            on=matches,
            delete=F.lit(True),
            update=None,
            insert=F.col(f"s.{fold.COPY}") > 0,
            insert_values={name: fold.column(name, "s") for name in columns},
            application=application,
            end=self.end,
        )

    def _net(self) -> DataFrame:
        """The number of copies to add or remove for each row value that the changes touch."""
        return self.rows.where(F.col(fold.ABOVE)).transform(fold.net_copies(self.source_names))

    def _load_rows(self, rows: DataFrame, application: str) -> dict[str, int]:
        """Write the rows into an empty current, or replace all rows after a truncate, without a join with current."""
        assert self.current is not None
        frame = select_columns_of(rows, self.current.schema())
        if self.truncated:
            delta_tables.replace(self.session, self.current, frame, application, self.end)
            return {"truncated": 1}
        return {"inserted": delta_tables.append(self.session, self.current, frame, application, self.end)}


def with_row_holes(rows: DataFrame) -> DataFrame:
    holes = F.when((F.col("_op") != "delete") & (F.size(fold.HOLES) > 0), F.col(fold.HOLES))
    return rows.withColumn(ROW_HOLES, holes)


def select_columns_of(frame: DataFrame, shape: StructType) -> DataFrame:
    """Select the table's columns in the table's order. A column that the changes lack is NULL."""
    names = set(frame.columns)
    return frame.select(
        *[fold.column(f.name) if f.name in names else F.lit(None).cast(f.dataType).alias(f.name) for f in shape.fields]
    )
