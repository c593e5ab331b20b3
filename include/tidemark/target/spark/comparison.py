"""Compares the chunks of a verify with the target, and counts the differences and records some of their keys (R7, R8).

A row is *missing* if a backfill's chunk would insert it, *differs* if the chunk would repair it, and *extra* if the
chunk or the sweep would remove it, or if it is a second row of one key. All chunks are compared with the pinned tables
before anything is written. Chunks of purpose `verify` write nothing; those of purpose `repair` are also merged, as
by `spark_chunk_merge` and `keyless_chunk_merge`.

Values that do not fit are all stored alike, so their texts are compared with those of the key's newest row in history,
if that row has them. Keys that differ are written to a Delta table of their own, at most `MOST_KEYS` of them, as texts
that a backfill of mode `keys` accepts. The lake's own rows hold these values too; no log does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property, reduce
from typing import Final

from msgspec.structs import replace
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidemark.formats.merge_result import ChunkResult
from tidemark.schema.postgres_types import STRING, target_of
from tidemark.target.delta import delta_tables
from tidemark.target.spark import fold, visibility
from tidemark.target.spark.chunk_frames import ChunkChanges
from tidemark.target.spark.fold import column
from tidemark.target.spark.keyless_chunk_merge import KeylessChunkChanges
from tidemark.target.spark.spark_chunk_merge import KeyedChunkChanges
from tidemark.target.spark.staged_changes import struct_of
from tidemark.target.spark.visibility import BY_TARGET, CLAIM, DIFFERING, INSERTED, REPAIRED, UNCHANGED, VERDICT

log = logging.getLogger(__name__)

# The most differing keys that are recorded per table and plan.
MOST_KEYS: Final = 1000
# Without a key, the whole row is recorded, and each value is cut at this length.
MOST_CHARACTERS: Final = 1000

MISSING, EXTRA, DIFFERS = "missing", "extra", "differs"

# Columns of a row that differs; `shape` explains them.
_KIND, _COLUMNS, _LSN, _AT = "__tidemark_kind", "__tidemark_columns", "__tidemark_lsn", "__tidemark_at"
_VERIFY, _REPAIRED = "__tidemark_verify", "__tidemark_is_repaired"
_FACTS: Final = (_VERIFY, _KIND, _COLUMNS, _REPAIRED, _LSN, _AT)
_TEXTS = "__tidemark_texts"  # the row's texts in history
_OPEN = "__tidemark_open"  # the columns whose text is in an earlier row of history


def shape() -> StructType:
    """The columns of the Delta table of differences.

    `verify` is the backfill's id. `lsn` and `at` are of the watermark at which the row differs. `key` maps the key's
    columns, or all columns of a table without key, to texts.
    """
    return struct_of(
        "verify string, kind string, columns array<string>, repaired boolean, lsn bigint, at timestamp, "
        "key map<string,string>"
    )


def _recorded(
    changes: ChunkChanges, differing: DataFrame | None, swept: Sequence[DataFrame], names: Sequence[str]
) -> DataFrame | None:
    """At most `MOST_KEYS` of the rows that differ, with the columns of `shape`; None if no row differs. `differing` are
    those of chunks. The columns `names` identify a row."""
    frames = [*swept]
    compared = _compared(changes)
    if differing is not None and compared:
        verify = F.element_at(F.create_map(*[F.lit(part) for one in compared.items() for part in one]), F.col(CLAIM))
        repairs = [number for number in compared if changes.alive[number].purpose == "repair"]
        repaired = F.col(CLAIM).isin(*repairs) if repairs else F.lit(False)
        chunks = differing.withColumn(_VERIFY, verify).withColumn(_REPAIRED, repaired)
        frames.append(chunks.select(*_FACTS, *[column(name) for name in names]))
    if not frames:
        return None
    rows = changes._computed_once(reduce(DataFrame.unionByName, frames).limit(MOST_KEYS))
    if rows.isEmpty():
        return None
    texts = F.array(*[delta_tables.text_of(rows.schema[name]) for name in names])
    if not changes.schema.key:
        texts = F.transform(texts, lambda text: F.left(text, F.lit(MOST_CHARACTERS)))
    key = F.map_from_arrays(F.array(*[F.lit(name) for name in names]), texts)
    facts = [F.col(fact).alias(field.name) for fact, field in zip(_FACTS, shape().fields, strict=False)]
    return rows.select(*facts, key.alias("key"))


def _compared(changes: ChunkChanges) -> dict[int, str]:
    """The numbers of the compared claims, with the ids of their backfills."""
    return {n: claim.backfill for n, claim in changes.alive.items() if claim.purpose != "fill"}


class KeyedComparison(KeyedChunkChanges):
    """Compares chunks of purpose `verify`, or of purpose `repair`, which are also merged. Reads all of current."""

    narrows = False

    def _add_verdicts(self) -> fold.Transform:
        add_verdicts = visibility.add_verdicts(
            self.schema.key,
            self.source_names,
            self._target_rows,
            truncated=self.truncated,
            names_columns=True,
            not_read=self._not_read,
        )
        return lambda frame: frame.transform(add_verdicts).transform(self._settle_texts).transform(self._settle_copies)

    @cached_property
    def duplicate_keys(self) -> DataFrame | None:
        """The keys that current has in more than one row, None without any. No commit of Tidemark makes such rows."""
        if self._target_rows is None or self.truncated:
            return None
        key = [column(k) for k in self.schema.key]
        twice = self._target_rows.groupBy(*key).count().where(F.col("count") > 1).select(*key)
        twice = self._computed_once(twice)
        return None if twice.isEmpty() else F.broadcast(twice)

    def _settle_copies(self, with_verdicts: DataFrame) -> DataFrame:
        """Reduce a chunk row that was joined with several rows of current to one row, which differs."""
        if self.duplicate_keys is None:
            return with_verdicts
        key = list(self.schema.key)
        single_rows = with_verdicts.join(self.duplicate_keys, on=key, how="left_anti")
        copies = with_verdicts.join(self.duplicate_keys, on=key, how="left_semi").dropDuplicates([*key, CLAIM])
        differs = F.col(BY_TARGET) & F.col(VERDICT).isin(UNCHANGED, REPAIRED)
        nothing = F.array().cast("array<string>")
        return single_rows.unionByName(
            copies.withColumn(VERDICT, F.when(differs, REPAIRED).otherwise(F.col(VERDICT))).withColumn(
                DIFFERING, F.when(differs, nothing).otherwise(F.col(DIFFERING))
            )
        )

    def _settle_texts(self, with_verdicts: DataFrame) -> DataFrame:
        """Mark rows as differing if they are stored alike, but the texts of values that do not fit differ."""
        if not (self.history.exists and self._target_rows is not None and self._may_be_unfit):
            return with_verdicts
        key = [column(k) for k in self.schema.key]
        names = [f"__tidemark_key_{n}" for n in range(len(key))]
        history = delta_tables.rows(self.history)
        with_text = history.where(F.col("_text").isNotNull()).select(*key)
        own = self._reads.where(F.col("_text").isNotNull()).select(*key)
        keys = with_text.unionByName(own).distinct()
        order = F.struct("_generation", "_commit_lsn", "_ordinal", F.col("_op") != "delete")
        newest = (
            history.join(keys, on=list(self.schema.key), how="left_semi")
            .groupBy(*key)
            .agg(F.max_by(F.struct("_text", "_unchanged"), order).alias("__tidemark_newest"))
            .select(
                *[column(k).alias(name) for k, name in zip(self.schema.key, names, strict=True)],
                _or_empty(F.col("__tidemark_newest._text")).alias(_TEXTS),
                F.coalesce(F.col("__tidemark_newest._unchanged"), F.array().cast("array<string>")).alias(_OPEN),
            )
        )
        same = fold.all_of([column(k) == F.col(name) for k, name in zip(self.schema.key, names, strict=True)])
        joined = with_verdicts.join(newest, on=same, how="left").drop(*names)
        own_texts = _or_empty(F.col("_text"))
        unequal = F.filter(
            F.array(*[F.lit(name) for name in self.source_names]),
            lambda name: (
                ~F.try_element_at(own_texts, name).eqNullSafe(F.try_element_at(F.col(_TEXTS), name))
                & ~F.array_contains(F.col(_OPEN), name)
            ),
        )
        # A row from before a column was renamed has the text under the column's old name. So if history lacks a text
        # under the present name, an equal text under a name that the table no longer has may be the column's. Each such
        # text can only be one column's.
        own_names = F.array(*[F.lit(name) for name in self.names])
        of_older_names = F.map_values(F.map_filter(_TEXTS, lambda name, _: ~F.array_contains(own_names, name)))
        open_of_older_names = F.size(F.array_except(F.col(_OPEN), own_names))

        def may_have_older_name(name: Column) -> Column:
            text = F.try_element_at(own_texts, name)
            lacking = F.filter(
                unequal,
                lambda other: (
                    F.try_element_at(F.col(_TEXTS), other).isNull() & (F.try_element_at(own_texts, other) == text)
                ),
            )
            alike = F.filter(of_older_names, lambda older: older == text)
            return F.try_element_at(F.col(_TEXTS), name).isNull() & (
                F.size(lacking) <= F.size(alike) + open_of_older_names
            )

        differing = F.filter(unequal, lambda name: ~may_have_older_name(name))
        is_whole_row = ~F.col(CLAIM).isin(*self._not_read) if self._not_read else F.lit(True)
        differs = (
            is_whole_row
            & (F.col(VERDICT) == UNCHANGED)
            & F.col(BY_TARGET)
            & F.col(_OPEN).isNotNull()
            & (F.size(differing) > 0)
        )
        return (
            joined.withColumn(DIFFERING, F.when(differs, differing).otherwise(F.col(DIFFERING)))
            .withColumn(VERDICT, F.when(differs, REPAIRED).otherwise(F.col(VERDICT)))
            .drop(_TEXTS, _OPEN)
        )

    @property
    def _may_be_unfit(self) -> bool:
        """Whether a column can hold a value that does not fit. Texts that are not UTF-8 are ignored: they are rare."""
        return any(
            target_of(c.target).unfit and c.target != STRING.ddl
            for c in self.schema.columns
            if c.name in self.source_names
        )

    # --- differing rows -----------------------------------------------------------------------------------------------

    @cached_property
    def _differing(self) -> DataFrame:
        """The chunk rows that differ: CLAIM, kind, columns, lsn, at, and the key's columns."""
        return self._with_verdicts.where(
            F.col(VERDICT).isin(INSERTED, REPAIRED) & F.col(CLAIM).isin(*_compared(self))
        ).select(
            CLAIM,
            F.when(F.col(VERDICT) == INSERTED, MISSING)
            .when((F.col("_op") == "read") & (F.size(DIFFERING) > 0), DIFFERS)
            .otherwise(EXTRA)
            .alias(_KIND),
            F.when(F.size(DIFFERING) > 0, F.col(DIFFERING)).alias(_COLUMNS),
            F.col("_commit_lsn").alias(_LSN),
            F.col("_committed_at").alias(_AT),
            *self._key,
        )

    def _swept_rows(self) -> list[DataFrame]:
        swept = []
        for sweep in self.sweeps:
            if sweep.purpose != "fill" and sweep.backfill in self._swept:
                swept.append(
                    self._swept[sweep.backfill].select(
                        F.lit(sweep.backfill).alias(_VERIFY),
                        F.lit(EXTRA).alias(_KIND),
                        F.lit(None).cast("array<string>").alias(_COLUMNS),
                        F.lit(sweep.purpose == "repair").alias(_REPAIRED),
                        F.col("_commit_lsn").alias(_LSN),
                        F.col("_committed_at").alias(_AT),
                        *self._key,
                    )
                )
        return swept

    def differences(self) -> DataFrame | None:
        """The rows that differ, see `_recorded`."""
        differing = self._differing if _compared(self) else None
        return _recorded(self, differing, self._swept_rows(), self.schema.key)

    def chunk_results(self) -> tuple[ChunkResult, ...]:
        """The results of a backfill, with the differences per column and the number of extra rows."""
        results = super().chunk_results()
        if not any(r.inserted or r.repaired for r in results):
            return results
        extra: dict[int, int] = {}
        columns: dict[int, dict[str, int]] = {}
        for row in self._differing.where(F.col(_KIND) == EXTRA).groupBy(CLAIM).count().collect():
            extra[row[CLAIM]] = row["count"]
        named = self._differing.select(CLAIM, F.explode(_COLUMNS).alias("name"))
        for row in named.groupBy(CLAIM, "name").count().orderBy("name").collect():
            columns.setdefault(row[CLAIM], {})[row["name"]] = row["count"]
        return tuple(replace(r, extra=extra.get(n, 0), columns=columns.get(n, {})) for n, r in enumerate(results))


class KeylessComparison(KeylessChunkChanges):
    """Compares chunks of a table without a key, as `KeyedComparison`."""

    @cached_property
    def _differing(self) -> DataFrame | None:
        """One row per copy that current of a table without key lacks or has in excess, as of the chunk.

        On one side are the chunk's rows and the older changes that it did not see. On the other side are current and
        the plan's changes that it saw. More removals than copies leave no copy, as in the merge. None if no
        verify read the chunk.
        """
        base = self._base
        if base is None or base not in _compared(self):
            return None
        columns = [column(name) for name in self.source_names]
        copies = self._copies(base)
        types = {name: copies.schema[name].dataType for name in self.source_names}
        of_plan = F.coalesce(F.col(fold.ORIGIN) == fold.PLAN, F.lit(False))
        seen = F.coalesce(F.col(fold.SEEN) == 0, F.lit(False))
        sides = copies.select(
            *columns,
            F.when(of_plan, 0).otherwise(fold.copies_of()).alias("__tidemark_source"),
            F.when(of_plan & seen, fold.copies_of()).otherwise(0).alias("__tidemark_lake"),
        )
        if self._target_rows is not None and not self.truncated:
            in_lake = self._target_rows.select(
                *columns, F.lit(0).alias("__tidemark_source"), F.lit(1).alias("__tidemark_lake")
            )
            sides = sides.unionByName(in_lake)
        counted = sides.groupBy(fold.row_form(self.source_names, types).alias("__tidemark_form")).agg(
            (F.sum("__tidemark_source") - F.greatest(F.sum("__tidemark_lake"), F.lit(0))).alias(fold.NET),
            F.first(F.struct(*columns)).alias("__tidemark_row"),
        )
        each = F.explode(F.sequence(F.lit(1), F.abs(fold.NET).cast("int"))).alias("__tidemark_copy_number")
        claim = self.alive[base]
        return self._computed_once(
            counted.where(F.col(fold.NET) != 0)
            .select("*", each)
            .select(
                F.lit(base).alias(CLAIM),
                F.when(F.col(fold.NET) > 0, MISSING).otherwise(EXTRA).alias(_KIND),
                F.lit(None).cast("array<string>").alias(_COLUMNS),
                F.lit(int(claim.watermark_lsn)).cast("bigint").alias(_LSN),
                F.expr(f"TIMESTAMP '{claim.watermark_at}'").alias(_AT),
                *[column(name, "__tidemark_row").alias(name) for name in self.source_names],
            )
        )

    def differences(self) -> DataFrame | None:
        """The rows that differ, see `_recorded`."""
        return _recorded(self, self._differing, (), self.source_names)

    def chunk_results(self) -> tuple[ChunkResult, ...]:
        """A backfill counts the copies that history lacks, a verify those that current lacks."""
        if self._base is None or self._differing is None:
            return super().chunk_results()
        kinds = {row[_KIND]: row["count"] for row in self._differing.groupBy(_KIND).count().collect()}
        verdicts = {number: {UNCHANGED: claim.rows} for number, claim in enumerate(self.claims)}
        missing, extra = kinds.get(MISSING, 0), kinds.get(EXTRA, 0)
        unchanged = max(0, self.alive[self._base].rows - missing)
        verdicts[self._base] = {INSERTED: missing, REPAIRED: extra, UNCHANGED: unchanged}
        results = self._results(verdicts)
        return tuple(replace(r, extra=extra if n == self._base else 0) for n, r in enumerate(results))


Comparison = KeyedComparison | KeylessComparison


def _or_empty(texts: Column) -> Column:
    return F.coalesce(texts, F.create_map().cast("map<string,string>"))
