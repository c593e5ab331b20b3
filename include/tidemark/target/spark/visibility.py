"""Decides by snapshot visibility which rows a chunk adds to the changes around it: `read` and `sweep` rows (R7).

    chunk rows, then the changes that their snapshot did not see
                     │
                     ▼
    the row just below the chunk's high watermark W, by the snapshot
                     │  differs from ── the row just below W, by the stream
                     ▼
    a `read` row at W if the target lacks the row or has other values (a `sweep` row if it must not have the row)

LSNs alone cannot decide: a change whose commit record lies below the low watermark may not have been visible when the
chunk was read. The changes of a key that a snapshot did not see are always its last changes, since a transaction keeps
its row locks until its changes are visible. A truncate is a change of every key. Keys in no chunk follow the stream
alone.

All functions take and return DataFrames, without I/O; the driver has the lists of claims anyway. A claim's facts are
joined to its rows by number, so the driver's memory does not grow with the number of changes. `chunks.chunk_fold` has
the same rule in Arrow, for a first load; change both together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from tidemark.formats.manifest import Claim, KeyPart, Sweep
from tidemark.formats.snapshot import Snapshot
from tidemark.names import CHANGE_COLUMNS, MARK_COLUMNS, ORDER_COLUMNS, ROW_COLUMNS, ROW_HOLES
from tidemark.schema.table import TableSchema
from tidemark.target.spark import fold
from tidemark.target.spark.fold import ABOVE, HALF, HOLES, INHERITS, MOVED, ORIGIN, SEEN, Transform, column
from tidemark.target.spark.staged_changes import FOLDER, folder_of

# The columns of a row's commit: the generation, and the columns of it that current has.
AT_COLUMNS: Final = ("_generation", *ROW_COLUMNS)

# Columns that exist only within an application.
CLAIM: Final = "__tidemark_claim"  # the number of the chunk that a row or a key belongs to
ALONE: Final = "__tidemark_alone"  # the row's key has no change in plan or evidence
VERDICT: Final = "__tidemark_verdict"  # the outcome of a chunk's row: one of the five words below
BY_TARGET: Final = "__tidemark_by_target"  # the row was compared with the target, not with a change of the plan
DIFFERING: Final = "__tidemark_differing"  # the columns in which the row differs
LOST: Final = "__tidemark_lost"  # a change not seen by the snapshot was in the WAL before the low watermark

INSERTED, REPAIRED, UNCHANGED, OVERTAKEN = "inserted", "repaired", "unchanged", "overtaken"
LACKING: Final = "lacking"  # only some columns were read, and the target has no row with the key

_NO_LIMIT: Final = 2**31 - 1

_XMAX, _RUNNING, _POINT = "__tidemark_xmax", "__tidemark_running", "__tidemark_point"
_W, _W_AT, _LOW, _IS_ABOVE = "__tidemark_w", "__tidemark_w_at", "__tidemark_low", "__tidemark_is_above"


@dataclass(frozen=True, slots=True)
class TableTruncate:
    """One truncate of the table. `older`: an earlier plan applied it."""

    commit_lsn: int
    ordinal: int
    xid: int
    older: bool


def alive(claims: Sequence[Claim], truncates: Sequence[TableTruncate]) -> dict[int, Claim]:
    """The claims whose rows still count, by their numbers in the plan.

    If a chunk did not see a truncate below its watermark, the truncate has removed its rows. Its keys then follow the
    stream from the truncate on.
    """
    counting = {}
    for number, claim in enumerate(claims):
        unseen = [t for t in truncates if not sees(claim, t.xid, t.commit_lsn)]
        if not any(t.older or t.commit_lsn < int(claim.watermark_lsn) for t in unseen):
            counting[number] = claim
    return counting


def is_above(claim: Claim, truncates: Sequence[TableTruncate]) -> bool:
    """Whether the claim's snapshot saw the plan's last truncate. If not, the truncate removes the claim's rows too."""
    last = max((t for t in truncates if not t.older), key=lambda t: (t.commit_lsn, t.ordinal), default=None)
    return last is None or sees(claim, last.xid, last.commit_lsn)


def sees(claim: Claim | Sweep, xid: int, commit_lsn: int) -> bool:
    """Whether the transaction's changes were visible in the snapshot of the claim or sweep."""
    if isinstance(claim, Claim) and claim.consistent_point is not None:
        return commit_lsn < int(claim.consistent_point)
    return Snapshot.parse(claim.snapshot).sees(xid)


def claims_frame(session: SparkSession, claims: Mapping[int, Claim], truncates: Sequence[TableTruncate]) -> DataFrame:
    """One row per claim: its number, its snapshot and its watermarks. The frame is small and is broadcast."""
    rows = []
    for number, claim in claims.items():
        snapshot = Snapshot.parse(claim.snapshot)
        running = ", ".join(f"{xid}L" for xid in snapshot.in_progress)
        point = "CAST(NULL AS BIGINT)" if claim.consistent_point is None else f"{int(claim.consistent_point)}L"
        rows.append(
            f"({number}, '{folder_of(claim)}', {snapshot.xmax}L, CAST(array({running}) AS ARRAY<BIGINT>), "
            f"{point}, {int(claim.watermark_lsn)}L, TIMESTAMP '{claim.watermark_at}', {int(claim.low_lsn)}L, "
            f"{is_above(claim, truncates)})"
        )
    names = ", ".join([CLAIM, FOLDER, _XMAX, _RUNNING, _POINT, _W, _W_AT, _LOW, _IS_ABOVE])
    return F.broadcast(session.sql(f"SELECT * FROM VALUES {', '.join(rows)} AS claims({names})"))


def _is_seen() -> Column:
    """Whether the claim's snapshot saw a change, on a change joined with its key's claim."""
    by_id = (F.col("_xid") < F.col(_XMAX)) & ~F.array_contains(_RUNNING, F.col("_xid"))
    return F.when(F.col(_POINT).isNotNull(), F.col("_commit_lsn") < F.col(_POINT)).otherwise(by_id)


def _added_columns(
    values: Sequence[Column], *, op: Column, text: Column, at: Sequence[Column], unread: Column | None = None
) -> list[Column]:
    """The columns of a row that a chunk adds, in the shape of a split change.

    `at` are the values of AT_COLUMNS. `unread` names the columns that the chunk did not read; they keep their values.
    """
    facts = {**dict(zip(AT_COLUMNS, at, strict=True)), "_ordinal": F.lit(0), "_xid": F.lit(None), "_op": op}
    marks = {"_unchanged": F.lit(None) if unread is None else unread, "_text": text}
    return [
        *[facts[name].cast(target).alias(name) for name, target in CHANGE_COLUMNS.items()],
        *values,
        *[marks[name].cast(target).alias(name) for name, target in MARK_COLUMNS.items()],
        F.lit(1).alias(HALF),
    ]


def _watermark_columns(claim: Claim, generation: int) -> list[Column]:
    """AT_COLUMNS of the rows that a claimed chunk adds: those of its high watermark."""
    return [F.lit(generation), F.lit(int(claim.watermark_lsn)), F.expr(f"TIMESTAMP '{claim.watermark_at}'")]


# --- the chunks' rows among the changes -------------------------------------------------------------------------------


def unread(claims: Mapping[int, Claim], schema: TableSchema) -> Mapping[int, tuple[str, ...]]:
    """For each claim of some columns only, by its number, the source's other columns.

    Columns that the source dropped are not among them. They are NULL in the written rows, as for a whole chunk.
    """
    return {
        number: tuple(
            c.name
            for c in schema.columns
            if c.name not in schema.key and c.name not in schema.dropped and c.attnum not in claim.columns
        )
        for number, claim in claims.items()
        if claim.columns is not None
    }


def _unread_of(names: Mapping[int, tuple[str, ...]]) -> Column | None:
    """The columns that a chunk's row lacks, NULL for a whole row. Returns None if all rows are whole."""
    if not names:
        return None
    pairs = [(F.col(CLAIM) == number, F.array(*[F.lit(n) for n in unread])) for number, unread in names.items()]
    chosen = F.when(pairs[0][0], pairs[0][1])
    for condition, unread_names in pairs[1:]:
        chosen = chosen.when(condition, unread_names)
    return chosen.cast("array<string>")


def as_changes(
    claims: DataFrame, columns: Sequence[str], generation: int, not_read: Mapping[int, tuple[str, ...]]
) -> Transform:
    """Turn chunk rows (FOLDER, the columns, `_text`) into split changes with `_op` read at the watermark."""

    def transform(rows: DataFrame) -> DataFrame:
        return rows.join(claims, on=FOLDER, how="inner").select(
            *_added_columns(
                [column(name) for name in columns],
                op=F.lit("read"),
                text=F.col("_text"),
                at=(F.lit(generation), F.col(_W), F.col(_W_AT)),
                unread=_unread_of(not_read),
            ),
            F.lit(False).alias(MOVED),
            F.lit(None).cast("array<string>").alias(INHERITS),
            F.col(_IS_ABOVE).alias(ABOVE),
            F.lit(1).alias(SEEN),
            F.lit(fold.READ).alias(ORIGIN),
            F.col(CLAIM),
        )

    return transform


def greatest_watermark(key: Sequence[str]) -> Transform:
    """Keep the row with the greatest watermark of each key, if chunks of several backfills or attempts have the key."""

    def transform(rows: DataFrame) -> DataFrame:
        newest = F.max(F.struct("_commit_lsn", CLAIM)).over(Window.partitionBy(*[column(k) for k in key]))
        marked = rows.withColumn("__tidemark_newest", newest)
        return marked.where(F.col(CLAIM) == F.col("__tidemark_newest")[CLAIM]).drop("__tidemark_newest")

    return transform


def place_changes(key: Sequence[str], chunk_keys: DataFrame, claims: DataFrame) -> Transform:
    """Set SEEN and CLAIM of changes by the chunk of their key; `chunk_keys` has the key's columns and CLAIM.

    Older changes are kept only if a chunk's snapshot did not see them. The target already has all other older changes.
    """
    names = [f"__tidemark_key_{n}" for n in range(len(key))]

    def transform(changes: DataFrame) -> DataFrame:
        of_key = chunk_keys.select(*[column(k).alias(n) for k, n in zip(key, names, strict=True)], CLAIM)
        same_key = fold.all_of([column(k) == F.col(n) for k, n in zip(key, names, strict=True)])
        joined = changes.join(of_key, on=same_key, how="left").drop(*names).join(claims, on=CLAIM, how="left")
        return joined.transform(mark_seen)

    return transform


def mark_seen(changes: DataFrame) -> DataFrame:
    """Set SEEN of changes that are joined with their claims, and drop older changes that the snapshot saw."""
    unseen = F.col(CLAIM).isNotNull() & ~_is_seen()
    placed = changes.withColumn(SEEN, F.when(unseen, 2).otherwise(0))
    marked = placed.where((F.col(ORIGIN) == fold.PLAN) | (F.col(SEEN) == 2))
    return marked.drop(FOLDER, _XMAX, _RUNNING, _POINT, _W, _W_AT, _LOW, _IS_ABOVE)


# --- verdicts of a chunk's rows ---------------------------------------------------------------------------------------


def at_watermark(key: Sequence[str], columns: Sequence[str], claims: DataFrame) -> Transform:
    """Combine the filled changes and the chunk rows of keys that have both -> one row per key, as of its watermark.

    The row is the chunk's row after the older changes that its snapshot did not see. `__tidemark_stream` is the plan's
    newest change below the watermark; NULL means that the stream's row is the target's. VERDICT is OVERTAKEN if the
    snapshot did not see that change, since the change itself then sets the row. If a chunk saw the plan's last
    truncate, only changes above the truncate count as its stream.
    """
    row = F.struct("_op", *[column(name) for name in columns], "_text", HOLES, SEEN)
    order = F.struct(*fold.ORDER)

    def transform(events: DataFrame) -> DataFrame:
        of_claim = events.where(F.col(CLAIM).isNotNull()).join(
            claims.select(CLAIM, _W, _LOW, _IS_ABOVE), on=CLAIM, how="inner"
        )
        same_side = F.col(ABOVE) | ~F.col(_IS_ABOVE)
        below = (F.col(ORIGIN) == fold.PLAN) & (F.col("_commit_lsn") < F.col(_W)) & same_side
        lost = (F.col(SEEN) == 2) & (F.col("_commit_lsn") < F.col(_LOW))
        in_chunk = F.col(ORIGIN) == fold.READ
        facts = (*AT_COLUMNS, ABOVE)
        per_key = of_claim.groupBy(*[column(k) for k in key]).agg(
            F.max_by(row, F.when(in_chunk, F.lit(1))).alias("__tidemark_read"),
            F.max_by(row, F.when(F.col(ORIGIN) == fold.OLDER, order)).alias("__tidemark_older"),
            F.max_by(row, F.when(below, order)).alias("__tidemark_stream"),
            F.max_by(F.struct(CLAIM, *facts), F.when(in_chunk, F.lit(1))).alias("__tidemark_at"),
            F.coalesce(F.max(lost), F.lit(False)).alias(LOST),
        )
        stream = F.col("__tidemark_stream")
        value = F.coalesce("__tidemark_older", "__tidemark_read")
        named = F.when(stream.isNull(), value).otherwise(F.col("__tidemark_read"))
        chosen = per_key.where(F.col("__tidemark_read").isNotNull()).withColumn("__tidemark_row", named)
        is_overtaken = F.coalesce(stream[SEEN] == 2, F.lit(False))
        return chosen.select(
            *[F.col("__tidemark_at")[fact].alias(fact) for fact in (*facts, CLAIM)],
            F.when(F.col("__tidemark_row._op") == "delete", "sweep").otherwise("read").alias("_op"),
            *[column(name, "__tidemark_row").alias(name) for name in columns],
            F.col("__tidemark_row._text").alias("_text"),
            F.col(f"__tidemark_row.{HOLES}").alias(HOLES),
            stream.alias("__tidemark_stream"),
            F.when(is_overtaken, F.lit(OVERTAKEN)).alias(VERDICT),
            F.col(LOST),
            F.lit(False).alias(ALONE),
        )

    return transform


def untouched(columns: Sequence[str]) -> Transform:
    """Give chunk rows whose keys no change of the plan or the evidence has the columns of `at_watermark`."""

    def transform(rows: DataFrame) -> DataFrame:
        return rows.select(
            *[*AT_COLUMNS, ABOVE, CLAIM, "_op"],
            *[column(name) for name in columns],
            "_text",
            F.lit(None).cast("array<string>").alias(HOLES),
            F.lit(None).cast(_stream_type(rows, columns)).alias("__tidemark_stream"),
            F.lit(None).cast("string").alias(VERDICT),
            F.lit(False).alias(LOST),
            F.lit(True).alias(ALONE),
        )

    return transform


def _stream_type(rows: DataFrame, columns: Sequence[str]) -> StructType:
    """The type of the column `__tidemark_stream` of `at_watermark`."""
    fields = [rows.schema[name] for name in ("_op", *columns, "_text")]
    return StructType([*fields, StructField(HOLES, ArrayType(StringType())), StructField(SEEN, IntegerType())])


def add_verdicts(
    key: Sequence[str],
    columns: Sequence[str],
    target: DataFrame | None,
    *,
    truncated: bool,
    names_columns: bool = False,
    not_read: Mapping[int, tuple[str, ...]] | None = None,
) -> Transform:
    """Set VERDICT by comparing the chunk's row with the stream's row: the plan's change, or else the target's row.

    If the plan is `truncated`, the target has no row for rows above the truncate. With `names_columns`, BY_TARGET and
    DIFFERING are set too. `not_read` has the columns that some claims did not read (`unread`). Their rows get these
    columns from the target, unless the plan's changes have them. Without a row in the target they are LACKING.
    """
    names = [f"__tidemark_key_{n}" for n in range(len(key))]

    def transform(rows: DataFrame) -> DataFrame:
        types = {f.name: f.dataType for f in rows.schema.fields}
        stream = F.col("__tidemark_stream")
        is_row = F.col("_op") == "read"
        in_stream = stream["_op"] != "delete"
        same_as_stream = _same(columns, types, "__tidemark_stream")
        if target is None:
            joined = rows
            present, same = F.coalesce(in_stream, F.lit(False)), same_as_stream
            differing = _differing(columns, types, "__tidemark_stream")
        else:
            holes = F.col(ROW_HOLES) if ROW_HOLES in target.columns else F.lit(None).cast("array<string>")
            current = target.select(
                *[column(k).alias(n) for k, n in zip(key, names, strict=True)],
                F.struct(*[column(name) for name in columns], holes.alias(HOLES)).alias("__tidemark_there"),
            )
            matches = fold.all_of([column(k) == F.col(n) for k, n in zip(key, names, strict=True)])
            joined = rows.join(current, on=matches, how="left").drop(*names)
            if not_read:
                joined = joined.transform(_with_unread(columns, not_read))
            in_target = F.col("__tidemark_there").isNotNull()
            if truncated:
                in_target &= ~F.col(ABOVE)
            same_as_target = _same(columns, types, "__tidemark_there")
            present = F.when(stream.isNotNull(), in_stream).otherwise(in_target)
            same = F.when(stream.isNotNull(), same_as_stream).otherwise(same_as_target)
            differing = F.when(stream.isNotNull(), _differing(columns, types, "__tidemark_stream")).otherwise(
                _differing(columns, types, "__tidemark_there")
            )
        verdict = (
            F.when(F.col(VERDICT).isNotNull(), F.col(VERDICT))
            .when(~is_row & ~present, F.lit(OVERTAKEN))
            .when(is_row & ~present, F.lit(INSERTED) if not not_read else _inserted(not_read))
            .when(is_row & same, F.lit(UNCHANGED))
            .otherwise(F.lit(REPAIRED))
        )
        with_verdicts = joined.withColumn(VERDICT, verdict)
        if names_columns:
            with_verdicts = with_verdicts.withColumn(BY_TARGET, stream.isNull())
            with_verdicts = with_verdicts.withColumn(
                DIFFERING, F.when((F.col(VERDICT) == REPAIRED) & is_row, differing)
            )
        return with_verdicts.drop("__tidemark_stream", "__tidemark_there")

    return transform


def _inserted(not_read: Mapping[int, tuple[str, ...]]) -> Column:
    return F.when(F.col(CLAIM).isin(*not_read), F.lit(LACKING)).otherwise(F.lit(INSERTED))


def _with_unread(columns: Sequence[str], not_read: Mapping[int, tuple[str, ...]]) -> Transform:
    """Fill the unread columns from the target's row (`__tidemark_there`), including its holes.

    Only rows whose keys no change has are filled.
    """
    target_row, names = F.col("__tidemark_there"), _unread_of(not_read)
    assert names is not None
    unread_names = sorted({name for of_claim in not_read.values() for name in of_claim})

    def transform(joined: DataFrame) -> DataFrame:
        is_filled = F.coalesce(F.col(ALONE) & names.isNotNull() & target_row.isNotNull(), F.lit(False))
        holes = F.array_intersect(F.coalesce(target_row[HOLES], F.array().cast("array<string>")), names)
        values = {
            name: F.when(is_filled & F.array_contains(names, name), target_row[name]).otherwise(column(name))
            for name in unread_names
        }
        values[HOLES] = F.when(is_filled, holes).otherwise(F.col(HOLES))
        return joined.select(*[values[name].alias(name) if name in values else column(name) for name in joined.columns])

    return transform


def _differing(columns: Sequence[str], types: dict[str, DataType], struct: str) -> Column:
    """The columns in which a row differs from the row in a struct, or in which only one of the two has a hole."""
    lacks = [F.coalesce(of, F.array().cast("array<string>")) for of in (F.col(HOLES), F.col(struct)[HOLES])]
    differs = []
    for name in columns:
        holes = F.array_contains(lacks[0], F.lit(name)) != F.array_contains(lacks[1], F.lit(name))
        forms = fold.row_form([name], types), fold.row_form([name], types, struct)
        differs.append(F.when(holes | ~forms[0].eqNullSafe(forms[1]), F.lit(name)))
    return F.array_compact(F.array(*differs))


def _same(columns: Sequence[str], types: dict[str, DataType], struct: str) -> Column:
    """Whether a row and the row in a struct are stored alike and have the same holes."""
    nothing = F.array().cast("array<string>")
    holes = [F.array_sort(F.coalesce(of, nothing)) for of in (F.col(HOLES), F.col(struct)[HOLES])]
    same_values = fold.row_form(columns, types).eqNullSafe(fold.row_form(columns, types, struct))
    return (holes[0] == holes[1]) & same_values


def additions(key: Sequence[str], columns: Sequence[str], not_read: Mapping[int, tuple[str, ...]]) -> Transform:
    """Turn rows with verdicts into the `read` and `sweep` rows that are added to the changes.

    A `sweep` row keeps only the key.
    """
    unread_names = _unread_of(not_read)

    def transform(with_verdicts: DataFrame) -> DataFrame:
        is_row = F.col("_op") == "read"
        return with_verdicts.where(F.col(VERDICT).isin(INSERTED, REPAIRED)).select(
            *_added_columns(
                [column(name) if name in key else F.when(is_row, column(name)).alias(name) for name in columns],
                op=F.col("_op"),
                text=F.when(is_row, F.col("_text")),
                at=[F.col(name) for name in AT_COLUMNS],
                unread=None
                if unread_names is None
                else F.when(is_row, _unread_names(columns, with_verdicts, unread_names)),
            ),
            ABOVE,
            HOLES,
            ALONE,
        )

    return transform


def _unread_names(columns: Sequence[str], rows: DataFrame, unread_names: Column) -> Column:
    """The unread columns that the row names in `_unchanged`.

    A NULL of a type that may be TOASTed is not named, unless the value is unknown: a reader treats a named NULL as an
    unknown value. A NULL of another type is named, since it may stand for a value that does not fit, whose text is in
    an earlier row.
    """
    named = []
    for name in columns:
        is_toastable = isinstance(rows.schema[name].dataType, StringType | BinaryType | ArrayType | MapType)
        is_unknown = F.coalesce(F.array_contains(HOLES, F.lit(name)), F.lit(False))
        has_value = column(name).isNotNull() | is_unknown if is_toastable else F.lit(True)
        named.append(F.when(F.array_contains(unread_names, F.lit(name)) & has_value, F.lit(name)))
    names = F.array_compact(F.array(*named))
    return F.when(F.size(names) > 0, names)


# --- without a key ----------------------------------------------------------------------------------------------------


def above_last_truncate(history: DataFrame) -> DataFrame:
    """The rows of history above its last truncate, with the columns that `fold.net_copies` needs."""
    order = F.struct("_generation", *ORDER_COLUMNS)
    last = history.where(F.col("_op") == "truncate").agg(F.max(order).alias("__tidemark_last"))
    above = F.col("__tidemark_last").isNull() | (order > F.col("__tidemark_last"))
    rows = history.crossJoin(F.broadcast(last)).where(above & (F.col("_op") != "truncate")).drop("__tidemark_last")
    return rows.withColumn(HALF, F.lit(1))


def copies_at(claim: Claim, columns: Sequence[str], generation: int) -> Transform:
    """Turn net copies with texts into rows at the claim's watermark: `read` per missing, `sweep` per surplus copy."""

    def transform(net: DataFrame) -> DataFrame:
        copies = F.explode(F.sequence(F.lit(1), F.abs(fold.NET).cast("int")))
        return (
            net.where(F.col(fold.NET) != 0)
            .withColumn("__tidemark_copy_number", copies)
            .select(
                *_added_columns(
                    [column(name) for name in columns],
                    op=F.when(F.col(fold.NET) > 0, "read").otherwise("sweep"),
                    text=F.col("_text"),
                    at=_watermark_columns(claim, generation),
                ),
                F.lit(True).alias(ABOVE),
                F.lit(None).cast("array<string>").alias(HOLES),
                F.lit(True).alias(ALONE),
            )
        )

    return transform


# --- sweeps: rows of the target that no chunk has ---------------------------------------------------------------------


def swept(
    key: Sequence[str],
    columns: Sequence[str],
    target: DataFrame,
    keys_read: DataFrame,
    generation: int,
    watermark: Claim,
) -> DataFrame:
    """`sweep` rows at the watermark for the target's keys that are not in `keys_read`, which has the key's columns.

    Keys are compared for equality only, since Spark's order of keys differs from the order of PostgreSQL's index.
    """
    types = {field.name: field.dataType for field in target.schema.fields}
    return target.join(keys_read, on=list(key), how="left_anti").select(
        *_added_columns(
            [column(name) if name in key else F.lit(None).cast(types[name]).alias(name) for name in columns],
            op=F.lit("sweep"),
            text=F.lit(None),
            at=_watermark_columns(watermark, generation),
        ),
        F.lit(True).alias(ABOVE),
        F.lit(None).cast("array<string>").alias(HOLES),
        F.lit(True).alias(ALONE),
    )


def within(key: Sequence[str], types: dict[str, DataType], parts: Sequence[KeyPart]) -> Column:
    """Whether a key lies in one of the parts, which must be in the order of the stored keys.

    The extra condition on the first column lets Delta skip files by their statistics.
    """
    own = F.struct(*[column(k) for k in key])

    def bound(texts: Sequence[str]) -> list[Column]:
        return [_value(text, types[k]).alias(k) for k, text in zip(key, texts, strict=True)]

    conditions = []
    for part in parts:
        inside = F.lit(True)
        if part.lower is not None:
            lower = bound(part.lower)
            inside &= (column(key[0]) >= lower[0]) & (own > F.struct(*lower))
        if part.upper is not None:
            upper = bound(part.upper)
            inside &= (column(key[0]) <= upper[0]) & (own <= F.struct(*upper))
        conditions.append(inside)
    return reduce(Column.__or__, conditions)


def keys_frame(session: SparkSession, key: Sequence[str], of: StructType, keys: Sequence[Sequence[str]]) -> DataFrame:
    """The keys, given as PostgreSQL's texts, as a frame with the types of the table's columns."""
    texts = F.from_json(F.lit(json.dumps([list(texts) for texts in keys])), "array<array<string>>")
    rows = session.range(1).select(F.explode(texts).alias("__tidemark_texts"))
    values = [_stored(F.col("__tidemark_texts")[at], of[k].dataType).alias(k) for at, k in enumerate(key)]
    return F.broadcast(rows.select(*values))


def _value(text: str, of: DataType) -> Column:
    """The value of a text of PostgreSQL."""
    return _stored(F.lit(text), of)


def _stored(text: Column, of: DataType) -> Column:
    return F.unhex(F.substring(text, 3, _NO_LIMIT)) if isinstance(of, BinaryType) else text.cast(of)


def keys_not_seen(key: Sequence[str], sweep: Sweep) -> Transform:
    """The keys of the changes that the sweep's snapshot did not see."""
    snapshot = Snapshot.parse(sweep.snapshot)
    is_seen = F.col("_xid") < snapshot.xmax
    if snapshot.in_progress:
        is_seen &= ~F.col("_xid").isin(*snapshot.in_progress)

    def transform(changes: DataFrame) -> DataFrame:
        return changes.where(~is_seen).select(*[column(k) for k in key])

    return transform
