"""Reads and commits Delta tables: a path, pinned at one version -> its position, its rows, the next commit (R5).

Positions are Delta's own application transactions (Delta protocol, "Transaction Identifiers"): `txnAppId` names
pipeline, generation, table and step, `txnVersion` is the end LSN of the last batch applied. They are read from the
log and tested before anything is written. Two fences stand behind that test, for a driver that outlives its task:

- `append` commits on the very version whose position was tested: it opens Delta's transaction on the pinned snapshot,
  so any commit of the same application id in between is a conflict. Appending twice would double rows, so here
  nothing less will do. `create` does so too: of two first commits one is a conflict. So does `data_files.exchange`.
- `merge` and `replace` start from the newest version, and are right from there whatever it is: what they write is the
  newest value per key, computed from one pinned version, so doing it again, or over a part of it, changes nothing.
  One that is behind is skipped by Delta itself (`txnVersion`), one that runs into another's commit fails.

Never used: autoMerge, WHEN NOT MATCHED BY SOURCE (it disables file pruning), change data feed, CHECK constraints.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
from delta.tables import DeltaTable
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
from tidemark.target.delta import hadoop_files, internals, log_files, public_path
from tidemark.target.delta.internals import DeltaSnapshot, Transaction
from tidemark.target.delta.jvm import array_list, java_class
from tidemark.target.delta.log_files import LoggedVersion

# What every row of a table says of the source's commit that it is of, where appends are of whole commits.
_COMMITS: Final = frozenset({"_generation", "_commit_lsn"})

# What Delta cannot put into a plain Parquet column name; such a table is created with column mapping.
UNMAPPED_CHARACTERS: Final = frozenset(" ,;{}()\n\t=")

COPY_BUFFER: Final = 2**20

# Commits between two checkpoints of a table, at least.
CHECKPOINTS: Final = 40

STATISTICS_TYPES: Final = (NumericType, StringType, DateType, TimestampType, TimestampNTZType)

# Delta's Python classes have no parent in common.
_CONFLICTS: Final = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)

# Conditions by which Delta says that the table changed under a command that had been planned on an older version.
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
    """Whether another writer's commit came in between, so that the positions have to be read again."""
    if isinstance(error, _CONFLICTS):
        return True
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
    """The vectors of its files that were read, by their unique ids: a version's never change."""
    shapes: list[StructType] = field(default_factory=list, compare=False, repr=False)
    """Its schema, once it was asked for: that of a hundred columns takes milliseconds on its way from the JVM, and a
    merge asks in a dozen places."""

    @property
    def exists(self) -> bool:
        return self.version >= 0

    @property
    def logged(self) -> LoggedVersion | None:
        """What its log says of it, where it is written by `public_path`: commits start from the newest version then."""
        return self.state if isinstance(self.state, LoggedVersion) else None

    @property
    def snapshot(self) -> DeltaSnapshot:
        """What Delta's own classes say of it. Raises NeedsDeltaInternals."""
        if isinstance(self.state, LoggedVersion):
            raise NeedsDeltaInternals(path=self.path, lacks=internals.misfit(self.state.spark) or "them")
        return self.state

    @property
    def files(self) -> int:
        """How many data files this version has."""
        return self.state.files if self.exists else 0

    @property
    def bytes(self) -> int | None:
        """The size of this version's data files, None if nobody has added it up."""
        return self.state.bytes if self.exists else 0

    def position(self, application: str) -> Lsn | None:
        """The end LSN of the last batch applied under this application id, None if there is none."""
        return self.state.position(application) if self.exists else None

    @property
    def is_mapped(self) -> bool:
        """Whether its files' columns are called otherwise than the table's ("Column Mapping")."""
        return self.exists and self.state.is_mapped

    @property
    def properties(self) -> dict[str, str]:
        """The table's own, of a table that exists."""
        properties: dict[str, str] = self.state.metadata.get("configuration", {})
        return properties

    def schema(self) -> StructType:
        """Not to be changed by whoever gets it."""
        if not self.exists:
            return StructType()
        if not self.shapes:
            self.shapes.append(StructType.fromJson(json.loads(self.state.schema)))
        return self.shapes[0]


@dataclass(frozen=True, slots=True)
class PinnedPair:
    """Both Delta tables of a table of the source; one without identity has history only."""

    history: PinnedTable
    current: PinnedTable | None


def pin(spark: SparkSession, path: str) -> PinnedTable:
    """The newest version of the table, read from its log now."""
    state = internals.newest(spark, path) if internals.misfit(spark) is None else log_files.newest(spark, path)
    return PinnedTable(path, state.version, state)


def as_committed(spark: SparkSession, path: str) -> PinnedTable:
    """The newest version that this driver knows: what it committed itself, or a later one. The log is not read, if this
    Spark's Delta is a known one."""
    if internals.misfit(spark) is not None:
        return pin(spark, path)
    state = internals.committed(spark, path)
    return PinnedTable(path, state.version, state)


def rows(spark: SparkSession, table: PinnedTable) -> DataFrame:
    """The rows of the pinned version, whatever is committed meanwhile."""
    return table.state.rows()


def rows_in_files_of(spark: SparkSession, table: PinnedTable, keys: DataFrame, key: Sequence[str]) -> DataFrame:
    """The rows of the pinned version that lie in the files where these keys occur; `keys` has the columns of `key`.

    For reading wide columns of few rows: one pass over the keys alone finds the files, as MERGE itself does it. What
    comes to the driver is the names of those files, never a row.
    """
    pinned = rows(spark, table)
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
    of_these = functions.element_at(functions.split(added.col("path"), "/"), -1).isInCollection(names)
    return table.snapshot.rows_of(added.filter(of_these).collectAsList())


def rows_of_files(spark: SparkSession, table: PinnedTable, added: Sequence[Any]) -> DataFrame:
    """The rows of some files of the pinned version, given as Delta's own actions."""
    listed = array_list(spark)
    for action in added:
        listed.add(action)
    return table.snapshot.rows_of(listed)


def count_holes(spark: SparkSession, path: str, key: Sequence[str], most: int) -> Holes:
    """The rows of the newest version that have `_holes`: how many per column, and the keys of `most` of them.

    There are no keys where PostgreSQL would not read them from Spark's texts: then the whole table is read again.
    """
    lacking = rows(spark, pin(spark, path)).where(F.col(ROW_HOLES).isNotNull())
    columns = lacking.select(F.explode(ROW_HOLES).alias("name")).groupBy("name").count().collect()
    if not columns:
        return Holes({}, ())
    texts = [text for k in key if (text := _as_postgres_reads_it(lacking.schema[k])) is not None]
    keys = lacking.select(*texts).limit(most).collect() if len(texts) == len(key) else []
    return Holes({row["name"]: row["count"] for row in columns}, tuple(tuple(row) for row in keys))


def text_of(field: StructField) -> Column:
    """A column's values as texts for people; those of a key mostly as PostgreSQL reads them."""
    text = _as_postgres_reads_it(field)
    return F.to_json(F.col(spark_identifier(field.name))) if text is None else text


def _as_postgres_reads_it(field: StructField) -> Column | None:
    """A column's values as texts that are input of its source's type, None if they cannot be."""
    value = F.col(spark_identifier(field.name))
    if isinstance(field.dataType, ArrayType | MapType):
        return None
    if isinstance(field.dataType, BinaryType):
        return F.concat(F.lit("\\x"), F.hex(value))
    if isinstance(field.dataType, TimestampType):
        return F.date_format(value, "yyyy-MM-dd HH:mm:ss.SSSSSSXXX")
    return value.cast("string")


def create(spark: SparkSession, table: PinnedTable, schema: StructType, properties: Mapping[str, str]) -> None:
    """An empty table, in a commit of its own that carries no position, on the pinned version, which is none.

    `DeltaTable.createIfNotExists` refuses a location that holds an empty log. A driver that was killed before this
    commit leaves one, and the table could never be created; a rival in the middle of its own commit has one too, and
    the slower of the two would fail. So an empty log is accepted.

    Unless `properties` say how often, it has a checkpoint every `CHECKPOINTS` commits or some more, by its path: tables
    that are merged together have theirs one after the other.

    Raises LocationTaken, and what `is_contested` recognises if another driver was faster.
    """
    _refuse_what_is_not_ours(spark, table)
    interval = CHECKPOINTS + zlib.crc32(table.path.encode()) % (CHECKPOINTS // 2)
    properties = {"delta.checkpointInterval": str(interval), **properties, **_column_mapping(schema.names)}
    if table.logged is not None:
        public_path.create(table.logged, schema, properties)
    else:
        Transaction(table.snapshot).commit_new_table(schema, properties)


def _refuse_what_is_not_ours(spark: SparkSession, table: PinnedTable) -> None:
    """Raises LocationTaken if files lie beside a log without a version: they are somebody's own, and the next VACUUM
    would remove them. Delta leaves names alone that begin with "_" or ".".
    """
    folder = java_class(spark, "org.apache.hadoop.fs.Path")(table.path)
    files = folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    names = sorted(str(file.getPath().getName()) for file in files.listStatus(folder)) if files.exists(folder) else []
    others = [name for name in names if not name.startswith(("_", "."))]
    if others and not pin(spark, table.path).exists:  # it has a version by now: of a rival, whom the commit meets
        raise LocationTaken(path=table.path, file=others[0])


def with_statistics(schema: StructType, columns: Sequence[str]) -> dict[str, str]:
    """The property by which files carry statistics of these columns only, as far as Delta has any for their types."""
    able = [name for name in columns if isinstance(schema[name].dataType, STATISTICS_TYPES)]
    if not able:
        return {"delta.dataSkippingNumIndexedCols": "0"}
    return {"delta.dataSkippingStatsColumns": ",".join(spark_identifier(name) for name in able)}


def make_room(spark: SparkSession, table: PinnedTable, fields: Sequence[StructField]) -> None:
    """Have the table support what columns like these ask of it: names that its files cannot have, times without a
    zone."""
    asked = _column_mapping([f.name for f in fields])
    if any("timestamp_ntz" in f.dataType.simpleString() for f in fields):
        asked["delta.feature.timestampNtz"] = "supported"
    if asked:
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in asked.items())
        spark.sql(f"ALTER TABLE delta.{spark_identifier(table.path)} SET TBLPROPERTIES ({listed})")


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A Parquet file that lies in a table's folder and belongs to none of its versions yet: `name` in the folder, size,
    rows, and between which values (inclusive) the columns of `bounds` are. `masked` of the rows are gone from the
    beginning, by the `vector` (its descriptor as JSON has it). `tags` stay with the file as long as it is one."""

    name: str
    bytes: int
    rows: int
    bounds: Mapping[str, tuple[int, int]]
    masked: int = 0
    vector: Mapping[str, Any] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    def to_json(self, modified_ms: int) -> str:
        """Its action `add` (Delta protocol, "Add File and Remove File", "Per-file Statistics")."""
        statistics = {
            "numRecords": self.rows,
            "tightBounds": False,  # the values lie between the bounds, and need not reach them
            "minValues": {name: low for name, (low, _) in self.bounds.items()},
            "maxValues": {name: high for name, (_, high) in self.bounds.items()},
        }
        added = {
            "path": self.name,
            "partitionValues": {},
            "size": self.bytes,
            "modificationTime": modified_ms,
            "dataChange": True,
            "stats": json.dumps(statistics),
            **({"deletionVector": dict(self.vector)} if self.vector is not None else {}),
            **({"tags": dict(self.tags)} if self.tags else {}),
        }
        return json.dumps({"add": added})


def copy_in(spark: SparkSession, table: PinnedTable, uri: str) -> tuple[str, int, str]:
    """Copy a file into the table's folder, byte for byte, under a name of its own. Returns that name, the size and the
    SHA-256 of what was copied. Until a commit adds it, it is garbage that a VACUUM removes.
    """
    path = java_class(spark, "org.apache.hadoop.fs.Path")
    source = path(uri)
    name = f"staged-{java_class(spark, 'java.util.UUID').randomUUID()}.parquet"
    target = path(table.path, name)
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    digest = java_class(spark, "java.security.MessageDigest").getInstance("SHA-256")
    read = java_class(spark, "java.security.DigestInputStream")(
        source.getFileSystem(configuration).open(source), digest
    )
    try:
        # Closed whatever happens; an object store publishes the file by that.
        written = target.getFileSystem(configuration).create(target, False)
        try:
            size = java_class(spark, "org.apache.commons.io.IOUtils").copy(read, written, COPY_BUFFER)
        finally:
            written.close()
    finally:
        read.close()
    sha256 = java_class(spark, "java.util.HexFormat").of().formatHex(digest.digest())
    return name, int(size), str(sha256)


def append(
    spark: SparkSession,
    table: PinnedTable,
    frame: DataFrame | None,
    application: str,
    end: Lsn,
    written: Sequence[WrittenFile] = (),
) -> int:
    """One commit that adds the frame's rows and the files that lie in the folder, and sets the position, on the pinned
    version. Returns the number of rows.

    Raises what `is_contested` recognises if another commit touched the position or the schema since it was pinned.
    """
    if table.logged is not None:
        return _append_to(table, table.logged, frame, application, end)
    transaction = Transaction(table.snapshot)
    transaction.move(application, end)
    if frame is not None:
        transaction.write(frame)
    for file in written:
        transaction.add_json(file.to_json(transaction.now_ms))
    return transaction.commit() + sum(file.rows - file.masked for file in written)


def _append_to(table: PinnedTable, logged: LoggedVersion, frame: DataFrame | None, application: str, end: Lsn) -> int:
    """The same on the newest version. What lies at the pinned position and above it is a rival's."""
    if frame is None or set(table.schema().names) >= _COMMITS:
        return public_path.append(logged, frame, application, table.position(application) or Lsn(0), end)
    public_path.append_once(logged, frame, application, end)
    return 0


def add_rows(spark: SparkSession, table: PinnedTable, rows: pa.Table, bounded: Sequence[str]) -> None:
    """One commit that adds the rows as a file with statistics of the columns `bounded`, whole numbers, and reads
    nothing: beside others of its kind it is a conflict with none of them."""
    if table.logged is not None:
        public_path.append_rows(table.logged, spark.createDataFrame(rows))
        return
    content = io.BytesIO()
    pq.write_table(rows, content)
    name = hadoop_files.write_new(spark, table.path, content.getvalue())
    extremes = {column: pc.min_max(rows[column]).as_py() for column in bounded}
    bounds = {column: (between["min"], between["max"]) for column, between in extremes.items()}
    transaction = Transaction(table.snapshot)
    file = WrittenFile(name, len(content.getvalue()), rows.num_rows, bounds)
    transaction.add_json(file.to_json(transaction.now_ms))
    transaction.commit()


def exchange_all(table: PinnedTable, frame: DataFrame, positions: Mapping[str, Lsn], shape: StructType | None) -> int:
    """One commit on the pinned version after which the table holds these rows alone, in this shape if one is given, and
    is at these positions, by application. Returns the number of rows.

    Raises what `is_contested` recognises if anything was committed since it was pinned.
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


def properties_for(names: Sequence[str]) -> dict[str, str]:
    """What a new table needs for columns of these names."""
    return _column_mapping(names)


def replace(spark: SparkSession, table: PinnedTable, frame: DataFrame, application: str, end: Lsn) -> None:
    """One commit after which the table holds these rows only; its properties stay."""
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
    """One MERGE of `source` (alias s) into the table (alias t). Returns the rows inserted, updated, deleted.

    Nothing is counted if Delta skipped it since the position is there already. The handle is built anew for each
    merge: it would otherwise keep the schema of its first use.
    """
    if table.logged is not None:
        target = public_path.target(table.logged)
    else:
        target = DeltaTable(spark, table.snapshot.as_target(table.path))
    with public_path.transaction(spark, application, int(end)):
        builder = target.alias("t").merge(source.alias("s"), on)
        builder = builder.whenMatchedDelete(delete)
        if update is not None:
            builder = builder.whenMatchedUpdate(set=_quoted(update))
        result: Any = builder.whenNotMatchedInsert(insert, values=_quoted(insert_values)).execute()
        counted = result.collect()
    if not counted:
        return {}
    row = counted[0]
    return {
        "inserted": row["num_inserted_rows"],
        "updated": row["num_updated_rows"],
        "deleted": row["num_deleted_rows"],
    }


def _quoted(values: Mapping[str, Column]) -> dict[str, str | Column]:
    return {spark_identifier(name): value for name, value in values.items()}


def _column_mapping(names: Sequence[str]) -> dict[str, str]:
    return {"delta.columnMapping.mode": "name"} if any(set(n) & UNMAPPED_CHARACTERS for n in names) else {}
