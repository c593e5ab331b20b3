"""Folds changes into the rows that history and current get: DataFrame to DataFrame, no I/O.

    changes ── split_identity ── fill_unchanged ──┬── history: every change, one row each
                                                  └── newest_per_key ── current: one row per key (net_copies: multiset)

Changes are ordered by `(_commit_lsn, _ordinal)` within a generation (R1). `split_identity` turns a change of the key
into two rows: the delete of the old key and the insert of the new one. HALF orders them within their change. After it,
every row has one key. A key has one *life* after the other: a life begins with an insert or in the target, and ends
with a delete.

A chunk's row begins a life, as an insert does. In the order of its key it comes after the changes that its snapshot
saw, and before all other changes of the key; those are always the last ones. Older changes that the snapshot did not
see are folded again; the target has the values that they do not set.

**Unchanged values**: PostgreSQL does not send a TOASTed value that an update did not touch. The mask `_unchanged` names
such columns. The value is the newest value since the life's insert. If the life began in the target, and no later
change sent a value, it is the target's value. If the life began with a change of the key, it is the value that the old
key's life had at that point, along the whole chain of moves, even if keys are swapped or used again. If there is no
value, the column is a hole: it is NULL, and HOLES names it.

Each value is wrapped into a struct, so that "present and NULL" differs from "not present". The struct also holds the
text of a value that does not fit (R8), but only the text of a chunk's row or of an older change. The plan's own changes
have their texts in their own history rows, and the target has no texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, MapType

from tidemark.errors import MovesNotResolved
from tidemark.names import CHANGE_COLUMNS, OLD_PREFIX, ORDER_COLUMNS, ROW_COLUMNS, ROW_HOLES, spark_identifier

# Columns that exist only within an application; no source column has such a name.
BEFORE = "__tidemark_before"  # the identity's columns as they were before the change
HALF = "__tidemark_half"  # 0: the delete of a change of identity, 1: everything else
MOVED = "__tidemark_moved"  # the insert of a change of identity
ABOVE = "__tidemark_above"  # the change lies above the plan's last truncate
HOLES = "__tidemark_holes"  # the row's columns whose unchanged value no row has
NET = "__tidemark_net"  # multiset: copies to add, negative: to remove
INHERITS = "__tidemark_inherits"  # on the delete of a change of the key: its unchanged columns, for the new key
# Only if chunks are claimed, see `visibility`:
SEEN = "__tidemark_seen"  # 0: seen by the snapshot of the key's chunk, or the key has none; 1: its row; 2: not seen
ORIGIN = "__tidemark_origin"  # the plan's own change, an older one that was applied before, or a chunk's row

ORDER = (*ORDER_COLUMNS, HALF)

PLAN, OLDER, READ = "plan", "older", "read"

Transform = Callable[[DataFrame], DataFrame]

# The most fields of a struct. Two levels of structs hold the square of it, more than PostgreSQL's 1,600 columns.
MOST_FIELDS = 64

# A chain of moves is halved by every round; no plan holds more than 2^40 changes.
MAX_ROUNDS = 40


def column(name: str, of: str | None = None) -> Column:
    quoted = spark_identifier(name)
    return F.col(quoted if of is None else f"{of}.{quoted}")


def _is_unchanged(name: str) -> Column:
    return F.coalesce(F.array_contains("_unchanged", F.lit(name)), F.lit(False))


def split_identity(identity: Sequence[str], columns: Sequence[str], *, moved: bool, multiset: bool) -> Transform:
    """Split a change of the identity into the delete of the old identity (HALF 0) and the insert of the new (HALF 1).

    `identity` are the key's columns, or all columns of a multiset. In a multiset every update is split, whatever
    `moved` is, and a delete takes its values from the old row. With a key, nothing is split if `moved` is False: the
    manifest states that no key changed. Removes BEFORE.
    """

    def transform(changes: DataFrame) -> DataFrame:
        metadata = [name for name in CHANGE_COLUMNS if name != "_op"]
        splits = (F.col("_op") == "update") & F.col(BEFORE).isNotNull() if moved or multiset else F.lit(False)
        if moved or multiset:
            halves = F.explode(F.when(splits, F.array(F.lit(0), F.lit(1))).otherwise(F.array(F.lit(1))))
        else:
            halves = F.lit(1)
        numbered = changes.withColumn(HALF, halves).withColumn(MOVED, splits)
        is_old = F.col(MOVED) & (F.col(HALF) == 0)
        takes_before = (is_old | (F.col("_op") == "delete")) if multiset else is_old
        values = []
        for name in columns:
            before = column(name, BEFORE) if name in identity else F.lit(None)
            value = column(name)
            values.append((F.when(takes_before, before).otherwise(value) if moved or multiset else value).alias(name))
        text = F.when(~is_old, F.col("_text"))
        if multiset:
            text = _text_of_half(is_old)
        op = F.when(is_old, "delete").when(F.col(MOVED), "insert").otherwise(F.col("_op"))
        return numbered.select(
            *metadata,
            op.alias("_op"),
            *values,
            F.when(~is_old, F.col("_unchanged")).alias("_unchanged"),
            text.alias("_text"),
            HALF,
            MOVED,
            F.when(is_old, F.col("_unchanged")).alias(INHERITS),
        )

    return transform


def _text_of_half(is_old: Column) -> Column:
    """`_text` of a multiset's change: an update's delete gets the names with OLD_PREFIX, every other row the rest."""
    of_old = F.map_filter("_text", lambda name, _: name.startswith(OLD_PREFIX))
    old = F.transform_keys(of_old, lambda name, _: F.substr(name, F.lit(len(OLD_PREFIX) + 1)))
    own = F.map_filter("_text", lambda name, _: ~name.startswith(OLD_PREFIX))
    text = F.when(is_old, old).otherwise(own)
    return F.when(F.size(text) > 0, text)


def mark_above(last_truncate: tuple[int, int] | None) -> Transform:
    """Set ABOVE: whether a change is above the last truncate, `(commit_lsn, ordinal)`. Without a truncate all are."""

    def transform(changes: DataFrame) -> DataFrame:
        if last_truncate is None:
            return changes.withColumn(ABOVE, F.lit(True))
        commit_lsn, ordinal = last_truncate
        above = (F.col("_commit_lsn") > commit_lsn) | (
            (F.col("_commit_lsn") == commit_lsn) & (F.col("_ordinal") > ordinal)
        )
        return changes.withColumn(ABOVE, above)

    return transform


def without_holes(changes: DataFrame) -> DataFrame:
    """Set HOLES to NULL, as `fill_unchanged` does if no change has an unchanged value."""
    return changes.withColumn(HOLES, F.lit(None).cast("array<string>"))


def fill_unchanged(
    key: Sequence[str],
    unchanged: Sequence[str],
    *,
    moved: bool,
    truncated: bool,
    target: DataFrame | None,
    small: bool = False,
) -> Transform:
    """Fill in the values of the columns that `_unchanged` names; the mark stays. Sets HOLES.

    `unchanged` are the columns that occur in the mask. `target` is the pinned version of current, None if there is
    none. `moved`: a change of the key has unchanged values too. `truncated`: the plan has a truncate. A life above it
    that began without an insert has no values in the target. `small` changes are broadcast.

    A value from a chunk's row takes its text along, since history has no `read` row for an overtaken chunk row. So does
    a value from an older change: a `read` row made from it has no name in `_unchanged` that would refer a reader to
    earlier rows.
    """

    def transform(changes: DataFrame) -> DataFrame:
        if not unchanged:
            return without_holes(changes)
        frame = changes.transform(_add_own_values(key, unchanged))
        if moved:
            frame = frame.transform(_inherit(key, unchanged, target, truncated))
        else:
            frame = frame.select("*", *[_absent(changes, name).alias(_inherited(name)) for name in unchanged])
            frame = frame.withColumn(_ROOT, _own_root(key, truncated))
        if target is not None:
            frame = frame.transform(_take_from_target(key, unchanged, target, small))
        else:
            frame = frame.select("*", *[_absent(changes, name).alias(_target_value_name(name)) for name in unchanged])
        filled = {name: _filled_value(name) for name in unchanged}
        values = [
            F.when(_is_unchanged(name), filled[name]["value"]).otherwise(column(name)).alias(name)
            if name in filled
            else column(name)
            for name in changes.columns
            if name != "_text"
        ]
        text = _with_texts_of(filled).alias("_text") if SEEN in changes.columns else column("_text")
        holes = F.array_compact(F.array(*[F.when(_is_unchanged(n) & filled[n].isNull(), F.lit(n)) for n in unchanged]))
        return frame.select(*values, text, holes.alias(HOLES))

    return transform


# --- sources of an unchanged value: the life, the old key's life, the target ------------------------------------------

_ROOT = "__tidemark_root"  # the key of the target's row in which the life, or the chain of lives, began
_BORN = "__tidemark_born"  # the insert that began the life: its order key, and whether it was a change of the key


def _own_value_name(name: str) -> str:
    return f"__tidemark_known_{name}"


def _inherited(name: str) -> str:
    return f"__tidemark_handed_{name}"


def _target_value_name(name: str) -> str:
    return f"__tidemark_base_{name}"


def _filled_value(name: str) -> Column:
    own = column(_own_value_name(name))
    return F.coalesce(
        F.when(own["known"], F.struct(own["value"].alias("value"), own["text"].alias("text"))),
        column(_inherited(name)),
        column(_target_value_name(name)),
    )


def _with_texts_of(filled: dict[str, Column]) -> Column:
    """`_text`, with the texts of the filled values added."""
    names = F.array(*[F.lit(name) for name in filled])
    texts = F.map_from_arrays(names, F.array(*[F.when(_is_unchanged(n), f["text"]) for n, f in filled.items()]))
    filled_texts = F.map_filter(texts, lambda _, text: text.isNotNull())
    all_texts = F.map_concat(F.coalesce("_text", F.create_map().cast("map<string,string>")), filled_texts)
    return F.when(F.size(filled_texts) > 0, all_texts).otherwise(F.col("_text"))


def _absent(changes: DataFrame, name: str) -> Column:
    return F.lit(None).cast(f"struct<value: {changes.schema[name].dataType.simpleString()}, text: string>")


def _add_own_values(key: Sequence[str], unchanged: Sequence[str]) -> Transform:
    """Add the newest value since the life's insert for each column, and the insert that began the life.

    `known` is False if the insert did not send the value and no later change did. The struct is NULL if the life began
    in the target and no change sent the value.
    """
    # A chunk row of some columns only begins no life: the other columns keep their values.
    is_insert = (F.col("_op") == "insert") | ((F.col("_op") == "read") & F.col("_unchanged").isNull())

    def transform(changes: DataFrame) -> DataFrame:
        has_chunks = SEEN in changes.columns
        brings_text = F.col(ORIGIN) != PLAN if has_chunks else F.lit(False)
        life = (
            Window.partitionBy(*[column(k) for k in key], column(ABOVE))
            .orderBy(*((SEEN, *ORDER) if has_chunks else ORDER))
            .rowsBetween(Window.unboundedPreceding, Window.currentRow)
        )
        latest = []
        for name in unchanged:
            present = ~_is_unchanged(name)
            sent_value = F.when(
                (F.col("_op") != "delete") & (is_insert | present),
                F.struct(
                    present.alias("known"),
                    column(name).alias("value"),
                    F.when(brings_text, F.try_element_at("_text", F.lit(name))).alias("text"),
                ),
            )
            latest.append(F.last(sent_value, ignorenulls=True).over(life).alias(_own_value_name(name)))
        older = (F.col(ORIGIN) == OLDER) if has_chunks else F.lit(False)
        born = F.when(is_insert, F.struct(*ORDER_COLUMNS, F.col(MOVED).alias("moved"), older.alias("older")))
        return changes.select("*", *latest, F.last(born, ignorenulls=True).over(life).alias(_BORN))

    return transform


def _own_root(key: Sequence[str], truncated: bool) -> Column:
    """The row's own key if its life began in the target, else NULL.

    A life that an older change began is in the target too, since that change was applied. No life above a truncate is.
    """
    began_in_target = column(_BORN).isNull() | column(_BORN)["older"]
    if truncated:
        began_in_target &= ~column(ABOVE)
    return F.when(began_in_target, F.struct(*[column(k) for k in key]))


def _inherit(key: Sequence[str], unchanged: Sequence[str], target: DataFrame | None, truncated: bool) -> Transform:
    """Add the values that a life inherited if it began with a change of the key, and the root of its chain of lives.

    Each move has known values, a reference to the move by which the old life began, or the key of a row of the target.
    Each round replaces a reference by the content of the move that it points to. That doubles the distance covered, so
    the number of rounds is the logarithm of the longest chain of moves without a new value.
    """

    def transform(frame: DataFrame) -> DataFrame:
        born = column(_BORN)
        own = {name: column(_own_value_name(name)) for name in unchanged}
        moves = (
            frame.where(column(INHERITS).isNotNull())
            .select(
                F.struct(*ORDER_COLUMNS).alias("move"),
                F.when(born["moved"], F.struct(*[born[name] for name in ORDER_COLUMNS])).alias("from"),
                _own_root(key, truncated).alias("root"),
                *[
                    F.when(value["known"], F.struct(value["value"], value["text"])).alias(_inherited(name))
                    for name, value in own.items()
                ],
            )
            .localCheckpoint()
        )
        for _ in range(MAX_ROUNDS):
            if moves.where(F.col("from").isNotNull()).isEmpty():
                break
            moves = moves.transform(_follow_references(unchanged)).localCheckpoint()
        else:
            raise MovesNotResolved(rounds=MAX_ROUNDS)
        inherited = moves.select(
            column("move").alias("__tidemark_move"),
            F.col("root").alias("__tidemark_old_root"),
            *[column(_inherited(name)) for name in unchanged],
        )
        began_by_move = F.when(born["moved"], F.struct(*[born[name] for name in ORDER_COLUMNS]))
        joined = frame.join(inherited, on=began_by_move == F.col("__tidemark_move"), how="left")
        root = F.coalesce(_own_root(key, truncated), F.col("__tidemark_old_root"))
        return joined.withColumn(_ROOT, root).drop("__tidemark_move", "__tidemark_old_root")

    return transform


def _follow_references(unchanged: Sequence[str]) -> Transform:
    def transform(moves: DataFrame) -> DataFrame:
        child, parent = moves.alias("child"), moves.alias("parent")
        joined = child.join(parent, on=F.col("child.from") == F.col("parent.move"), how="left")
        follows = F.col("child.from").isNotNull()
        return joined.select(
            F.col("child.move").alias("move"),
            F.col("parent.from").alias("from"),
            F.when(follows, F.col("parent.root")).otherwise(F.col("child.root")).alias("root"),
            *[
                F.coalesce(column(_inherited(name), "child"), column(_inherited(name), "parent")).alias(
                    _inherited(name)
                )
                for name in unchanged
            ],
        )

    return transform


def _take_from_target(key: Sequence[str], unchanged: Sequence[str], target: DataFrame, small: bool) -> Transform:
    """Add the values of the target's row in which a life began (_ROOT).

    First the rows of keys with an unchanged value are selected from the target, so that the long values of other rows
    are never shuffled.
    """

    def transform(frame: DataFrame) -> DataFrame:
        names = [f"__tidemark_key_{n}" for n in range(len(key))]
        needed = (
            frame.where(column("_unchanged").isNotNull() | column(INHERITS).isNotNull())
            .select(*[column(k).alias(n) for k, n in zip(key, names, strict=True)])
            .distinct()
        )
        same_key = [column(k) == F.col(n) for k, n in zip(key, names, strict=True)]
        base = target.join(F.broadcast(needed) if small else needed, on=all_of(same_key), how="left_semi").select(
            F.struct(*[column(k) for k in key]).alias("__tidemark_target"),
            *[
                F.when(
                    ~_is_hole(target, name),
                    F.struct(column(name).alias("value"), F.lit(None).cast("string").alias("text")),
                ).alias(_target_value_name(name))
                for name in unchanged
            ],
        )
        return frame.join(base, on=F.col(_ROOT) == F.col("__tidemark_target"), how="left").drop("__tidemark_target")

    return transform


def _is_hole(target: DataFrame, name: str) -> Column:
    """Whether the target's row has a hole in the column."""
    if ROW_HOLES not in target.columns:
        return F.lit(False)
    return F.coalesce(F.array_contains(ROW_HOLES, F.lit(name)), F.lit(False))


def all_of(conditions: Sequence[Column]) -> Column:
    result = conditions[0]
    for condition in conditions[1:]:
        result &= condition
    return result


# --- rows of current --------------------------------------------------------------------------------------------------


def newest_per_key(key: Sequence[str]) -> Transform:
    """Keep the newest change of every key: exactly one row per key."""
    newest_first = Window.partitionBy(*[column(k) for k in key]).orderBy(*[F.col(name).desc() for name in ORDER])

    def transform(changes: DataFrame) -> DataFrame:
        numbered = changes.withColumn("__tidemark_row", F.row_number().over(newest_first))
        return numbered.where(F.col("__tidemark_row") == 1).drop("__tidemark_row")

    return transform


def copies_of() -> Column:
    """The number of copies of its row that a change adds: 1, or -1 for a removal."""
    return F.when(F.col("_op").isin("delete", "sweep"), -1).otherwise(1)


def net_copies(
    columns: Sequence[str], weight: Column | None = None, always: Column | None = None, *, texts: bool = False
) -> Transform:
    """Multiset: one row per distinct row value, with NET copies to add or remove and the newest change that touched it.

    `weight` is the number of copies that a row adds; the default is 1, or -1 for a removal. With a `weight`, a value
    whose NET is 0 is kept only if `always` holds for one of its rows. With `texts`, rows that differ in the text of a
    value that does not fit (`_text`) are distinct, as they are in history and at the source; current has no such texts.

    Without a `weight`, a value whose NET is 0 is kept: another driver may have committed some of its copies meanwhile,
    and the merge must be correct on top of that commit too. Values are compared by their stored form. So -0.0 and 0.0
    are distinct, and rows that differ only in a NULL are too.
    """

    def transform(changes: DataFrame) -> DataFrame:
        types = {name: changes.schema[name].dataType for name in columns}
        forms = [row_form(columns, types).alias("__tidemark_form")]
        if texts:
            forms.append(
                stored_form(_text_or_null(columns), changes.schema["_text"].dataType).alias("__tidemark_texts")
            )
        newest = F.struct(*[F.col(name) for name in ORDER], "_committed_at")
        grouped = changes.groupBy(*forms).agg(
            F.sum(copies_of() if weight is None else weight).alias(NET),
            F.coalesce(F.max(F.lit(weight is None) if always is None else always), F.lit(False)).alias("__tidemark_in"),
            F.first(F.struct(*[column(name) for name in columns])).alias("__tidemark_row"),
            *([F.first(_text_or_null(columns)).alias("_text")] if texts else []),
            F.max(newest).alias("__tidemark_newest"),
        )
        return grouped.where((F.col(NET) != 0) | F.col("__tidemark_in")).select(
            *[column(name, "__tidemark_row") for name in columns],
            *[F.col("__tidemark_newest")[name].alias(name) for name in ROW_COLUMNS],
            *(["_text"] if texts else []),
            NET,
        )

    return transform


def _text_or_null(columns: Sequence[str]) -> Column:
    """`_text` of these columns, NULL if it is empty."""
    text = F.map_filter("_text", lambda name, _: name.isin(*columns))
    return F.when(F.size(text) > 0, text)


def copies_after(columns: Sequence[str], target: DataFrame | None, *, small: bool = False) -> Transform:
    """Multiset: net changes -> one row per copy that current shall have afterwards, and one row with COPY 0 per value.

    In the MERGE, the row with COPY 0 matches all copies in the target, which are deleted. The other rows never match
    and are inserted. So writing the same rows again changes nothing. More removals than copies (rows from before the
    capture) leave no copy.
    """

    def transform(net: DataFrame) -> DataFrame:
        if target is None:
            counted = net.withColumn("__tidemark_there", F.lit(0))
        else:
            types = {name: net.schema[name].dataType for name in columns}
            with_target = target.alias("target").join(
                (F.broadcast(net) if small else net).alias("net"),
                on=same_row(columns, types, "target", "net"),
                how="left_semi",
            )
            form = row_form(columns, types).alias("__tidemark_form")
            counts = with_target.groupBy(form).agg(F.count(F.lit(1)).alias("__tidemark_there"))
            same = row_form(columns, types, "net").eqNullSafe(F.col("there.__tidemark_form"))
            counted = (
                net.alias("net")
                .join(counts.alias("there"), on=same, how="left")
                .select("net.*", F.coalesce(F.col("there.__tidemark_there"), F.lit(0)).alias("__tidemark_there"))
            )
        after = F.greatest(F.lit(0), F.col("__tidemark_there") + F.col(NET)).cast("int")
        return counted.withColumn(COPY, F.explode(F.sequence(F.lit(0), after))).drop("__tidemark_there", NET)

    return transform


COPY = "__tidemark_copy"


def same_row(columns: Sequence[str], types: dict[str, DataType], left: str, right: str) -> Column:
    return row_form(columns, types, left).eqNullSafe(row_form(columns, types, right))


def row_form(columns: Sequence[str], types: dict[str, DataType], of: str | None = None) -> Column:
    """A row as one value, a struct of stored forms: never NULL, and equal exactly if two rows are stored alike.

    It is one value because Spark handles each comparison of a conjunction separately. The constraints that it inferred
    grew exponentially with the columns (17 columns never ended), and 300 columns overflowed its stack. A struct of
    1,600 fields as the key of a join overflows it too, since planning recurses over an expression's children. So more
    than `MOST_FIELDS` fields are grouped into inner structs.
    """
    return _nested_struct([stored_form(column(name, of), types[name]) for name in columns])


def is_nothing(columns: Sequence[str], types: dict[str, DataType], of: str) -> Column:
    """Whether all columns of a row are NULL."""
    nothing = _nested_struct([stored_form(F.lit(None).cast(types[name]), types[name]) for name in columns])
    return row_form(columns, types, of).eqNullSafe(nothing)


def _nested_struct(values: Sequence[Column]) -> Column:
    forms = [value.alias(str(n)) for n, value in enumerate(values)]
    if len(forms) <= MOST_FIELDS:
        return F.struct(*forms)
    groups = [forms[first : first + MOST_FIELDS] for first in range(0, len(forms), MOST_FIELDS)]
    return F.struct(*[F.struct(*group).alias(str(n)) for n, group in enumerate(groups)])


def stored_form(value: Column, of: DataType) -> Column:
    """An expression that is equal for two values exactly if they are stored alike.

    It converts types whose own equality is looser (floating point: 0.0 = -0.0) or missing (maps).
    """
    if isinstance(of, FloatType | DoubleType):
        return value.cast("string")
    if isinstance(of, ArrayType) and isinstance(of.elementType, FloatType | DoubleType):
        return value.cast("array<string>")
    if isinstance(of, MapType):
        return F.array_sort(F.map_entries(value))
    return value
