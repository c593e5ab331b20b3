"""Reads and commits Delta tables: a path, pinned at one version -> its position, its rows, the next commit (R5).

Positions are Delta's own application transactions (Delta protocol, "Transaction Identifiers"): `txnAppId` names
pipeline, generation, table and step, `txnVersion` is the end LSN of the last batch applied. A merge reads them from the
log and tests them before it writes. Two fences protect against a driver that outlives its task after that test:

- `append` commits on the very version whose position was tested. It opens Delta's transaction on the pinned snapshot,
  so a commit of the same application id in between is a conflict. Appending twice would double rows, so nothing weaker
  is enough. `create` does the same: the second of two first commits is a conflict. So does `data_files.exchange`.
- `merge` and `replace` start from the newest version and are correct on any version. They write the newest value per
  key, computed from one pinned version. Writing it again, or over a part of it, changes nothing. Delta skips a command
  whose `txnVersion` is not above the table's. A command that conflicts with another commit fails.

Never used: autoMerge, WHEN NOT MATCHED BY SOURCE (it disables file pruning), change data feed, CHECK constraints.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemark.errors import LocationTaken, NeedsDeltaInternals
from tidemark.formats.merge_result import Holes
from tidemark.lsn import Lsn
from tidemark.names import ROW_HOLES, spark_identifier
from tidemark.target.delta import checkpoints, internals, log_files, public_path
from tidemark.target.delta.internals import DeltaSnapshot, Transaction
from tidemark.target.delta.jvm import array_list, hadoop_configuration, java_class
from tidemark.target.delta.log_files import LoggedVersion

# The columns that name a row's commit at the source. Appends to a table that has both are of whole commits.
_COMMITS: Final = frozenset({"_generation", "_commit_lsn"})

# Characters that Delta allows in a column's name only with column mapping.
UNMAPPED_CHARACTERS: Final = frozenset(" ,;{}()\n\t=")

STATISTICS_TYPES: Final = (NumericType, StringType, DateType, TimestampType, TimestampNTZType)

# Delta's exceptions for conflicts, in Java and, by the same names, in Python. They are told apart by name: not every
# delta-spark has the Python classes, and without them the conflict is Py4J's error.
_CONFLICTS: Final = frozenset(
    {
        "ConcurrentAppendException",
        "ConcurrentDeleteDeleteException",
        "ConcurrentDeleteReadException",
        "ConcurrentTransactionException",
        "ConcurrentWriteException",
        "DeltaConcurrentModificationException",
        "MetadataChangedException",
        "ProtocolChangedException",
    }
)

# Delta's error conditions for a table that changed after a command was planned.
_CONTESTED_CONDITIONS: Final = frozenset(
    {
        "DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS",
        "FIELD_ALREADY_EXISTS",
        "DELTA_ADD_COLUMN_AT_INDEX_LESS_THAN_ZERO",
        "DELTA_DUPLICATE_COLUMNS_FOUND",
        "DELTA_PATH_EXISTS",
        "DELTA_TABLE_ALREADY_EXISTS",
        "TABLE_OR_VIEW_ALREADY_EXISTS",
    }
)


def is_contested(error: BaseException) -> bool:
    """Whether the error means that another writer committed in between, so the positions must be read again."""
    if type(error).__name__ in _CONFLICTS:
        return True
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.getClass().getSimpleName()) in _CONFLICTS
    if isinstance(error, PySparkException):
        condition = error.getCondition() or ""
        return condition.partition(".")[0] in _CONTESTED_CONDITIONS or condition.startswith("DELTA_CONCURRENT")
    return False


@dataclass(frozen=True, slots=True)
class PinnedTable:
    """One version of one Delta table; `version` is -1 if there is none yet."""

    path: str
    version: int
    state: DeltaSnapshot | LoggedVersion
    vectors: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    """The deletion vectors read so far, by their unique ids; those of a version never change."""
    shapes: list[StructType] = field(default_factory=list, compare=False, repr=False)
    """The schema, once it was read. Reading a hundred columns from the JVM takes milliseconds, and a merge needs the
    schema in a dozen places."""

    @property
    def exists(self) -> bool:
        return self.version >= 0

    @property
    def logged(self) -> LoggedVersion | None:
        """The state read from the log files if the table is written by `public_path`, else None."""
        return self.state if isinstance(self.state, LoggedVersion) else None

    @property
    def snapshot(self) -> DeltaSnapshot:
        """Delta's own snapshot of the version. Raises NeedsDeltaInternals on `public_path`."""
        if isinstance(self.state, LoggedVersion):
            raise NeedsDeltaInternals(path=self.path, lacks=internals.misfit(self.state.spark) or "them")
        return self.state

    @property
    def files(self) -> int:
        """The number of this version's data files."""
        return self.state.files if self.exists else 0

    @property
    def bytes(self) -> int | None:
        """The size of this version's data files, None if its checksum file is missing."""
        return self.state.bytes if self.exists else 0

    def position(self, application: str) -> Lsn | None:
        """The end LSN of the last batch applied under this application id, None if there is none."""
        return self.state.position(application) if self.exists else None

    @property
    def is_mapped(self) -> bool:
        """Whether columns may have other names in the data files than in the table ("Column Mapping")."""
        return self.exists and self.state.is_mapped

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the table, which must exist."""
        properties: dict[str, str] = self.state.metadata.get("configuration", {})
        return properties

    def schema(self) -> StructType:
        """The table's schema, without fields if the table does not exist. Callers share it and must not change it."""
        if not self.exists:
            return StructType()
        if not self.shapes:
            self.shapes.append(StructType.fromJson(json.loads(self.state.schema)))
        return self.shapes[0]


@dataclass(frozen=True, slots=True)
class PinnedPair:
    """Both Delta tables of a source table. `current` is None for a source table without replica identity."""

    history: PinnedTable
    current: PinnedTable | None


def pin(spark: SparkSession, path: str) -> PinnedTable:
    """Pin the table's newest version, which is read from its log now."""
    state = internals.newest(spark, path) if internals.misfit(spark) is None else log_files.newest(spark, path)
    return PinnedTable(path, state.version, state)


def as_committed(spark: SparkSession, path: str) -> PinnedTable:
    """Pin the newest version in this driver's memory: its own last commit, or a later version.

    The log is not read, except on `public_path`.
    """
    if internals.misfit(spark) is not None:
        return pin(spark, path)
    state = internals.committed(spark, path)
    return PinnedTable(path, state.version, state)


def rows(table: PinnedTable) -> DataFrame:
    """The rows of the pinned version, whatever is committed later. They can be registered as a temporary view only in
    the session that pinned the table."""
    return table.state.rows()


def rows_in_files_of(spark: SparkSession, table: PinnedTable, keys: DataFrame, key: Sequence[str]) -> DataFrame:
    """The rows of the pinned version that lie in the files where these keys occur; `keys` has the columns of `key`.

    For reading wide columns of few rows. One pass over the keys alone finds the files, as MERGE does. The driver gets
    the names of these files and never a row.
    """
    pinned = rows(table)
    quoted = [spark_identifier(k) for k in key]
    if table.logged is not None:
        return pinned.join(keys.select(*quoted).distinct(), on=list(key), how="left_semi").select(*pinned.columns)
    with_files = pinned.select(*quoted, pinned.metadataColumn("_metadata")["file_name"].alias("__tidemark_file"))
    listed = with_files.join(keys.select(*quoted), on=list(key), how="left_semi").select("__tidemark_file").distinct()
    names = array_list(spark)
    for row in listed.collect():
        names.add(row["__tidemark_file"])
    added = table.snapshot.added
    functions = java_class(spark, "org.apache.spark.sql.functions")
    in_these_files = functions.element_at(functions.split(added.col("path"), "/"), -1).isInCollection(names)
    return table.snapshot.rows_of(added.filter(in_these_files).collectAsList())


def rows_of_files(spark: SparkSession, table: PinnedTable, added: Sequence[Any]) -> DataFrame:
    """The rows of some files of the pinned version, given as AddFile actions."""
    listed = array_list(spark)
    for action in added:
        listed.add(action)
    return table.snapshot.rows_of(listed)


def count_holes(spark: SparkSession, path: str, key: Sequence[str], most: int) -> Holes:
    """The rows of the newest version that have `_holes`: their number per column, and the keys of at most `most` rows.

    No keys are returned if PostgreSQL could not read them from Spark's texts. Then the whole table is backfilled.
    """
    rows_with_holes = rows(pin(spark, path)).where(F.col(ROW_HOLES).isNotNull())
    columns = rows_with_holes.select(F.explode(ROW_HOLES).alias("name")).groupBy("name").count().collect()
    if not columns:
        return Holes({}, ())
    texts = [text for k in key if (text := _postgres_text(rows_with_holes.schema[k])) is not None]
    keys = rows_with_holes.select(*texts).limit(most).collect() if len(texts) == len(key) else []
    return Holes({row["name"]: row["count"] for row in columns}, tuple(tuple(row) for row in keys))


def text_of(field: StructField) -> Column:
    """A column's values as texts, in PostgreSQL's input format if the type has one, else as JSON."""
    text = _postgres_text(field)
    return F.to_json(F.col(spark_identifier(field.name))) if text is None else text


def _postgres_text(field: StructField) -> Column | None:
    """A column's values as texts that PostgreSQL accepts for the source's type; None for arrays and maps."""
    value = F.col(spark_identifier(field.name))
    if isinstance(field.dataType, ArrayType | MapType):
        return None
    if isinstance(field.dataType, BinaryType):
        return F.concat(F.lit("\\x"), F.hex(value))
    if isinstance(field.dataType, TimestampType):
        return F.date_format(value, "yyyy-MM-dd HH:mm:ss.SSSSSSXXX")
    return value.cast("string")


def create(spark: SparkSession, table: PinnedTable, schema: StructType, properties: Mapping[str, str]) -> None:
    """Create an empty table, in a commit without a position. `table` is pinned, and has no version yet.

    `DeltaTable.createIfNotExists` refuses a location that holds an empty log. A driver that was killed before this
    commit leaves an empty log, and the table could never be created. Another driver that is creating the same table has
    an empty log too, and the slower of the two would fail. So an empty log is accepted here.

    `checkpoints.write_if_due` writes the table's checkpoints, or Delta itself on `public_path` and if `properties` set
    an interval.

    Raises LocationTaken, and an error that `is_contested` recognises if another driver was faster.
    """
    _refuse_foreign_files(spark, table)
    interval = checkpoints.NEVER if table.logged is None else str(checkpoints.commits_between(table.path))
    properties = {checkpoints.PROPERTY: interval, **properties, **column_mapping(schema.names)}
    if table.logged is not None:
        public_path.create(table.logged, schema, properties)
    else:
        Transaction(table.snapshot).commit_new_table(schema, properties)


def _refuse_foreign_files(spark: SparkSession, table: PinnedTable) -> None:
    """Raise LocationTaken if the folder of a table without a version has files.

    They are not Tidemark's, and the next VACUUM would remove them. Delta keeps names that begin with "_" or ".".
    """
    folder = java_class(spark, "org.apache.hadoop.fs.Path")(table.path)
    files = folder.getFileSystem(hadoop_configuration(spark))
    names = sorted(str(file.getPath().getName()) for file in files.listStatus(folder)) if files.exists(folder) else []
    foreign = [name for name in names if not name.startswith(("_", "."))]
    # If there is a version by now, another driver made it, and the commit that follows will conflict with it.
    if foreign and not pin(spark, table.path).exists:
        raise LocationTaken(path=table.path, file=foreign[0])


def with_statistics(schema: StructType, columns: Sequence[str]) -> dict[str, str]:
    """The table property by which Delta collects statistics of these columns only, if it supports their types."""
    supported = [name for name in columns if isinstance(schema[name].dataType, STATISTICS_TYPES)]
    if not supported:
        return {"delta.dataSkippingNumIndexedCols": "0"}
    return {"delta.dataSkippingStatsColumns": ",".join(spark_identifier(name) for name in supported)}


def enable_features(spark: SparkSession, table: PinnedTable, fields: Sequence[StructField]) -> None:
    """Enable the table features that these columns need: column mapping for their names, timestamps without a zone."""
    properties = column_mapping([f.name for f in fields])
    if any("timestamp_ntz" in f.dataType.simpleString() for f in fields):
        properties["delta.feature.timestampNtz"] = "supported"
    if properties:
        assignments = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        spark.sql(f"ALTER TABLE delta.{spark_identifier(table.path)} SET TBLPROPERTIES ({assignments})")


Bounds: TypeAlias = tuple[int, int] | tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A Parquet file in a table's folder that no version of the table has yet.

    `bounds` encloses the values of some columns without NULLs, both ends inclusive. The deletion vector
    `vector`, a descriptor as JSON, masks `masked` of the rows from the beginning. `tags` stay with the file in Delta's
    log.
    """

    name: str
    bytes: int
    rows: int
    bounds: Mapping[str, Bounds]
    masked: int = 0
    vector: Mapping[str, Any] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    def to_json(self, modified_ms: int) -> str:
        """The file's `add` action as JSON (Delta protocol, "Add File and Remove File", "Per-file Statistics")."""
        statistics = {
            "numRecords": self.rows,
            "tightBounds": False,  # the bounds enclose the values, but no value need equal a bound
            "minValues": {name: _in_statistics(low) for name, (low, _) in self.bounds.items()},
            "maxValues": {name: _in_statistics(high, is_upper=True) for name, (_, high) in self.bounds.items()},
            "nullCount": dict.fromkeys(self.bounds, 0),  # Delta skips no file by bounds without it
        }
        action = {
            "path": self.name,
            "partitionValues": {},
            "size": self.bytes,
            "modificationTime": modified_ms,
            "dataChange": True,
            "stats": json.dumps(statistics),
            **({"deletionVector": dict(self.vector)} if self.vector is not None else {}),
            **({"tags": dict(self.tags)} if self.tags else {}),
        }
        return json.dumps({"add": action})


def _in_statistics(value: int | datetime, *, is_upper: bool = False) -> int | str:
    """The bound as Delta's log has it. Of a time it has milliseconds: a lower one is rounded down, an upper one up."""
    if isinstance(value, int):
        return value
    rounded = value.astimezone(UTC) + timedelta(microseconds=999 if is_upper else 0)
    return rounded.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def append(
    spark: SparkSession,
    table: PinnedTable,
    frame: DataFrame | None,
    application: str,
    end: Lsn,
    written: Sequence[WrittenFile] = (),
) -> int:
    """Make one commit on the pinned version that adds the frame's rows and the written files, and sets the position.

    Returns the number of rows. Raises an error that `is_contested` recognises if another commit has set the position or
    changed the schema since the table was pinned.
    """
    if table.logged is not None:
        return _append_by_public_path(table, table.logged, frame, application, end)
    transaction = Transaction(table.snapshot)
    transaction.move(application, end)
    if frame is not None:
        transaction.write(frame)
    for file in written:
        transaction.add_json(file.to_json(transaction.now_ms))
    return transaction.commit() + sum(file.rows - file.masked for file in written)


def _append_by_public_path(
    table: PinnedTable, logged: LoggedVersion, frame: DataFrame | None, application: str, end: Lsn
) -> int:
    """Append on the newest version. Rows at the pinned position or above it were written by another driver."""
    if frame is None or set(table.schema().names) >= _COMMITS:
        return public_path.append(logged, frame, application, table.position(application) or Lsn(0), end)
    public_path.append_once(logged, frame, application, end)
    return 0


def replace_all_rows(
    table: PinnedTable, frame: DataFrame, positions: Mapping[str, Lsn], shape: StructType | None
) -> int:
    """Make one commit on the pinned version that replaces all rows, sets the positions and, if given, the shape.

    `positions` are by application id. Returns the number of rows. Raises an error that `is_contested` recognises if
    another commit came in between.
    """
    transaction = Transaction(table.snapshot)
    transaction.read_all()
    if shape is not None:
        transaction.describe({**table.state.metadata, "schemaString": shape.json()})
    for application, lsn in positions.items():
        transaction.move(application, lsn)
    transaction.remove_all()
    transaction.write(frame)
    return transaction.commit()


def replace(spark: SparkSession, table: PinnedTable, frame: DataFrame, application: str, end: Lsn) -> None:
    """Make one commit that replaces all rows and sets the position; the table's properties stay."""
    with public_path.transaction(spark, application, int(end)):
        frame.write.format("delta").mode("overwrite").save(table.path)


def merge(
    spark: SparkSession,
    table: PinnedTable,
    source: DataFrame,
    *,
    on: Column,
    delete: Column,
    update: Mapping[str, Column] | None,
    insert: Column,
    insert_values: Mapping[str, Column],
    application: str,
    end: Lsn,
) -> dict[str, int]:
    """Run one MERGE of `source` (alias s) into the table (alias t). Returns the rows inserted, updated, deleted.

    Returns no counts if Delta skipped the MERGE because the table already has the position. Each merge creates a new
    DeltaTable, since the object keeps the schema of its first use.
    """
    if table.logged is not None:
        target = DeltaTable.forPath(spark, table.path)
    else:
        target = DeltaTable(spark, table.snapshot.as_target(table.path))
    with public_path.transaction(spark, application, int(end)):
        builder = target.alias("t").merge(source.alias("s"), on)
        builder = builder.whenMatchedDelete(delete)
        if update is not None:
            builder = builder.whenMatchedUpdate(set=_quoted(update))
        result: Any = builder.whenNotMatchedInsert(insert, values=_quoted(insert_values)).execute()
        metrics = result.collect()
    if not metrics:
        return {}
    row = metrics[0]
    return {
        "inserted": row["num_inserted_rows"],
        "updated": row["num_updated_rows"],
        "deleted": row["num_deleted_rows"],
    }


def _quoted(values: Mapping[str, Column]) -> dict[str, str | Column]:
    return {spark_identifier(name): value for name, value in values.items()}


def column_mapping(names: Sequence[str]) -> dict[str, str]:
    """The table property that columns with these names need."""
    return {"delta.columnMapping.mode": "name"} if any(set(n) & UNMAPPED_CHARACTERS for n in names) else {}
