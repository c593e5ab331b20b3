"""Merges the changes of some batches of one table with Spark: history's append, and current's MERGE.

Every value that depends on the target comes from one pinned version of current: the values of unchanged columns, and
the number of copies of a row in a multiset. That version carries the position just before these changes. So both
commits depend only on it and on the staged files, and a second attempt computes the same.
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
from tidemark.target.driver.history_files import AsStaged, OnFailure, as_staged, copy_to_history
from tidemark.target.spark import fold
from tidemark.target.spark.staged_changes import read_changes

# Staged bytes per appended file; staged and written Parquet are of about one size.
FILE_BYTES: Final = 64 * 2**20

# In place of its copies.
_ANEW: Final = "anew"

# Changes up to both of these go to wherever current's rows are, which then need not be shuffled.
SMALL_ROWS: Final = 100_000
SMALL_BYTES: Final = 8 * 2**20  # as they lie there

# Files of current up to which it is read whole for the values of unchanged columns.
FEW_FILES: Final = 16


class Changes:
    """`batches` are the next ones behind `current`, the pinned version (None: the table has no current). `few_rows`
    says that planning costs more than computing. `load`, which may be set, are chunks whose files are added
    besides."""

    def __init__(
        self,
        table: StagedTable,
        batches: Sequence[PlannedBatch],
        current: PinnedTable | None,
        *,
        few_rows: bool,
        on_failure: OnFailure,
    ) -> None:
        self.session = table.session
        self.few_rows = few_rows
        self.on_failure = on_failure
        self.load: FirstLoad | None = None
        self.lake = table.lake
        self.schemas = table.schemas
        self.schema = table.schema
        self.names = [c.name for c in self.schema.columns]
        # What a row of the source can differ in: its columns that were dropped say nothing of it any more. Without a
        # key it is by these that a row is found.
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
        # The last one first: what is kept of another kept frame would be planned anew.
        for frame in reversed(self._cached):
            frame.unpersist()

    @property
    def are_small(self) -> bool:
        """Whether a copy of all of them has room in every executor."""
        claims = [c for b in self.batches for c in b.claims]
        rows = sum(b.rows for b in self.batches)
        size = sum(f.bytes for b in self.batches for f in b.files) + sum(f.bytes for c in claims for f in c.files)
        return rows <= SMALL_ROWS and size <= SMALL_BYTES

    # --- frames ---------------------------------------------------------------------------------------------------

    @cached_property
    def staged(self) -> DataFrame:
        """All changes as staged, truncates included."""
        return read_changes(self.session, self.lake, self.schemas, self.batches)

    @cached_property
    def last_truncate(self) -> tuple[int, int] | None:
        """The order key of the last truncate: one row, whatever their number."""
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

        Filled rows are kept for the second commit: they cost windows and joins over the target, and a MERGE that
        reads them again must see the same.
        """
        single = self._single(self.staged)
        names = self._unchanged_names(self.staged)
        if not names:
            return single.transform(fold.without_holes)
        return self._kept(single.transform(self._fill(single, names)))

    @property
    def additions(self) -> DataFrame | None:
        """What chunks add to the changes, see `spark_chunk_merge`."""
        return None

    def _single(self, staged: DataFrame) -> DataFrame:
        """Staged changes but truncates, one key each."""
        identity = self.names if self.multiset else self.schema.key
        changes = staged.where(F.col("_op") != "truncate") if self.may_truncate else staged
        return changes.transform(
            fold.split_identity(identity, self.names, moved=self.moved, multiset=self.multiset)
        ).transform(fold.mark_above(self.last_truncate))

    def _fill(self, changes: DataFrame, unchanged: Sequence[str]) -> fold.Transform:
        before = self._before(changes)
        return fold.fill_unchanged(
            self.schema.key, unchanged, moved=self.moved, truncated=self.truncated, target=before, small=self.are_small
        )

    def _kept(self, frame: DataFrame) -> DataFrame:
        """The frame, computed once; until `release`.

        Of few rows the plan is forgotten as well: planning it again for whatever comes of it was two thirds of a small
        merge. Should their executor be lost, the merge fails and is tried again; many rows are worth computing anew.
        """
        if self.few_rows:
            return frame.localCheckpoint(eager=False)
        self._cached.append(frame.persist())
        return frame

    def _before(self, changes: DataFrame) -> DataFrame | None:
        """The target's rows that unchanged values may come from; of a large table only the files they lie in."""
        if self.current is None or self.current.files == 0:
            return None
        if self.current.files <= FEW_FILES:
            return delta_tables.rows(self.session, self.current)
        keys = changes.where(F.col("_unchanged").isNotNull() | F.col(fold.INHERITS).isNotNull())
        keys = keys.select(*[fold.column(k) for k in self.schema.key])
        keys = F.broadcast(keys) if self.are_small else keys
        return delta_tables.rows_in_files_of(self.session, self.current, keys, self.schema.key)

    def _unchanged_names(self, staged: DataFrame) -> list[str]:
        """The columns that occur in the mask: at most all of the table's, and mostly one or two."""
        if not self.unchanged:
            return []
        rows = staged.select(F.explode("_unchanged").alias("name")).distinct().collect()
        return sorted(row["name"] for row in rows)

    # --- history --------------------------------------------------------------------------------------------------

    def move_history(self, history: PinnedTable, application: str) -> int:
        """Append every change, truncates as rows without a key. Returns the rows appended.

        Files that say already what history shall say are copied into its folder and committed as they are: their
        bytes were encoded once, by the drain.
        """
        kept = self._as_staged(history)
        others = kept.computed_files(self.batches)
        frames = self._computed(kept, others, history.schema())
        frame: DataFrame | None = None
        if frames:
            frame = reduce(DataFrame.unionByName, frames).coalesce(self._files_of(others))
        failpoints.reach("merge.before_history")
        as_they_are = [copy_to_history(self.session, history, self.lake, self.schema, b, f) for b, f in kept.files]
        as_they_are += [] if self.load is None else self.load.files_of_history(history)
        count = delta_tables.append(self.session, history, frame, application, self.end, as_they_are)
        failpoints.reach("merge.after_history")
        return count

    def _files_of(self, staged: Sequence[StagedFile]) -> int:
        """How many files the changes of these staged ones, and all chunks, are worth."""
        of_chunks = sum(f.bytes for b in self.batches for c in b.claims for f in c.files)
        return max(1, -(-(sum(f.bytes for f in staged) + of_chunks) // FILE_BYTES))

    def _computed(self, kept: AsStaged, others: Sequence[StagedFile], shape: StructType) -> list[DataFrame]:
        """What history gets of all files but those that are kept, and of chunks, in its shape; no frame if that is
        nothing for sure."""
        frames = []
        if others:
            of_others = kept.is_computed()
            frames.append(closing_select(self.rows.where(of_others), shape))
            if self.truncated:
                truncates = self.staged.where((F.col("_op") == "truncate") & of_others)
                frames.append(closing_select(truncates, shape))
        if self.additions is not None:
            frames.append(closing_select(self.additions, shape))
        return frames

    def _as_staged(self, history: PinnedTable) -> AsStaged:
        """A multiset's updates are two rows, a table with column mapping has other names in its files, and no file can
        be added on `public_path`."""
        if self.multiset or history.is_mapped or history.logged is not None:
            return AsStaged()
        versions = {schema.version for schema in self.schemas if schema.is_read_as(self.schema)}
        return as_staged(self.session, self.lake, self.batches, versions, self.on_failure)

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
        elif self.truncated or self._is_loaded:
            counted = self._load(newest.where(~removes), application)
        else:
            columns = [*self.names, *ROW_COLUMNS, ROW_HOLES]
            values = {name: fold.column(name, "s") for name in columns}
            source = newest.select(*[fold.column(name) for name in columns], "_op")
            same_key = fold.all_of([fold.column(k, "t") == fold.column(k, "s") for k in self.schema.key])
            if self.narrowed is not None:
                same_key &= self.narrowed
            if self.doubled is not None:
                source = source.transform(self._one_for_copies(self.doubled))
                same_key &= F.col("s._op") != _ANEW
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
        """One commit of few rows, whose keys come to the driver, and of files that are added as they are."""
        assert self.current is not None
        newest = self._kept(newest)
        shape = row_schema(self.schema)
        removed = ["delete", "sweep"]
        found = newest.select(*[fold.column(k) for k in self.schema.key], "_op").toArrow()
        stays = np.asarray(pc.invert(pc.is_in(found["_op"], pa.array(removed))).to_numpy(), np.bool_)
        rows = load.target.find([found[k].cast(shape.field(k).type) for k in self.schema.key])
        masked = load.target.by_file(rows)
        added: list[WrittenFile | DataFrame] = [*load.files_of_current()]
        if stays.any():
            staying = closing_select(newest.where(~F.col("_op").isin(removed)), self.current.schema())
            added.append(staying.coalesce(self._files_of([f for b in self.batches for f in b.files])))
        data_files.exchange(self.session, load.target.current, masked, added, application, self.end)
        updated = int((rows.is_there & stays).sum())
        gone = int((rows.is_there & ~stays).sum())
        return {"inserted": int(stays.sum()) - updated + load.rows, "updated": updated, "deleted": gone}

    @property
    def _is_loaded(self) -> bool:
        """Whether current is empty, and stays so until the commit: on `public_path` rows may come to it meanwhile."""
        return self.current is not None and self.current.logged is None and self.current.files == 0

    @property
    def narrowed(self) -> Column | None:
        """A condition on the target alone (alias t) that holds for every row whose key the changes have, None if there
        is no such: by it Delta leaves out files of the target."""
        return None

    @property
    def doubled(self) -> DataFrame | None:
        """Keys that current has in more than one row, as far as anybody has looked."""
        return None

    def _one_for_copies(self, doubled: DataFrame) -> fold.Transform:
        """An update would reach every copy of the row: they are removed, and the row is inserted once."""

        def transform(source: DataFrame) -> DataFrame:
            marked = source.join(doubled.withColumn("__tidemark_doubled", F.lit(True)), list(self.schema.key), "left")
            is_row = ~F.col("_op").isin("delete", "sweep") & F.col("__tidemark_doubled").isNotNull()
            ops = F.when(is_row, F.array(F.lit("delete"), F.lit(_ANEW))).otherwise(F.array("_op"))
            return marked.withColumn("_op", F.explode(ops)).drop("__tidemark_doubled")

        return transform

    def _newest(self) -> DataFrame:
        """One row per key that the changes leave behind, removals included, with ROW_HOLES."""
        newest = self.rows.where(F.col(fold.ABOVE)).transform(fold.newest_per_key(self.schema.key))
        return newest.transform(with_row_holes)

    def _multiset(self, application: str) -> dict[str, int]:
        assert self.current is not None
        columns = [*self.source_names, *ROW_COLUMNS]
        net = self._net()
        if self.truncated or self._is_loaded:
            copies = net.transform(fold.copies_after(self.source_names, None))
            return self._load(copies.where(F.col(fold.COPY) > 0), application)
        current = delta_tables.rows(self.session, self.current)
        copies = net.transform(fold.copies_after(self.source_names, current, small=self.are_small))
        types = {f.name: f.dataType for f in self.rows.schema.fields}
        # Delta asks this once more behind its outer join, where of a row that current has not all columns are NULL: it
        # would be taken for a row of nothing but NULL, which is a row as any other.
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
        """Per value that the changes touch, how many copies of it come or go."""
        return self.rows.where(F.col(fold.ABOVE)).transform(fold.net_copies(self.source_names))

    def _load(self, rows: DataFrame, application: str) -> dict[str, int]:
        """Into an empty table, or in place of everything before a truncate: no join with what is there."""
        assert self.current is not None
        frame = closing_select(rows, self.current.schema())
        if self.truncated:
            delta_tables.replace(self.session, self.current, frame, application, self.end)
            return {"truncated": 1}
        return {"inserted": delta_tables.append(self.session, self.current, frame, application, self.end)}


def with_row_holes(rows: DataFrame) -> DataFrame:
    holes = F.when((F.col("_op") != "delete") & (F.size(fold.HOLES) > 0), F.col(fold.HOLES))
    return rows.withColumn(ROW_HOLES, holes)


def closing_select(frame: DataFrame, shape: StructType) -> DataFrame:
    """The table's own columns in its own order; what the changes do not have (a column added since) is NULL."""
    names = set(frame.columns)
    return frame.select(
        *[fold.column(f.name) if f.name in names else F.lit(None).cast(f.dataType).alias(f.name) for f in shape.fields]
    )
