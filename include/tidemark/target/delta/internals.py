"""Holds every call into Delta's and Spark's internal classes, and checks at the session's start that they are there.

Internal is all that is neither Delta's public API (DataFrames, `DeltaTable`, SQL, settings) nor Spark's. Such classes
change without notice: `DeltaOperations.Write` has three options in Delta 4.0, six in 4.2, and eight in 4.4. SHAPES
lists what is called here, as Java's reflection spells it. Where one of them is missing, `misfit` names it, and tables
are read and written by `public_path` instead: by a vendor's own Delta, an older one, a newer one.

Most of it is a transaction on the very version whose position was tested (R5), and rows that are committed without a
Spark job.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidemark.errors import NeedsDeltaInternals
from tidemark.lsn import Lsn
from tidemark.target.delta.jvm import array, array_list, java_class, option, sequence

# Its `toString` takes an array of any class, as py4j does not give one to java.util.Arrays.
ARRAYS: Final = "org.apache.commons.lang3.ArrayUtils"

# "false": as if a shape were missing. It is for an operator who is told so, and for tests.
OPTION: Final = "spark.tidemark.deltaInternals"

_DELTA: Final = "org.apache.spark.sql.delta"
_SOURCES: Final = "org.apache.spark.sql.execution.datasources"
_SESSION: Final = "org.apache.spark.sql.SparkSession"
_OPTION: Final = "scala.Option"
_SEQ: Final = "scala.collection.immutable.Seq"
_MAP: Final = "scala.collection.immutable.Map"
_PATH: Final = "org.apache.hadoop.fs.Path"
_STRUCT: Final = "org.apache.spark.sql.types.StructType"

BITMAP: Final = f"{_DELTA}.deletionvectors.RoaringBitmapArray"
VECTOR_STORE: Final = f"{_DELTA}.storage.dv.HadoopFileSystemDVStore"
_BITMAP_FORMAT: Final = f"{_DELTA}.deletionvectors.RoaringBitmapArrayFormat"
_VECTOR: Final = f"{_DELTA}.actions.DeletionVectorDescriptor"
_FILE: Final = f"{_DELTA}.actions.AddFile"
_VERSIONED: Final = f"{_DELTA}.catalog.DeltaTableV2"
_WRITE: Final = f"{_DELTA}.DeltaOperations$Write"
_CREATE: Final = f"{_DELTA}.DeltaOperations$CreateTable"

# Class -> its methods with their parameters, and "" for a constructor.
SHAPES: Final[Mapping[str, Sequence[str]]] = {
    f"{_DELTA}.DeltaLog": (
        f"forTable({_SESSION},java.lang.String)",
        f"update(boolean,{_OPTION},{_OPTION})",
        "unsafeVolatileSnapshot()",
        "dataPath()",
        f"startTransaction({_OPTION},{_OPTION})",
        f"createRelation({_SEQ},{_OPTION},{_OPTION},boolean)",
        f"createDataFrame({_DELTA}.SnapshotDescriptor,{_SEQ},boolean,{_OPTION})",
    ),
    f"{_DELTA}.Snapshot": (
        *("version()", "metadata()", "protocol()", "schema()", "checksumOpt()", "transactions()"),
        *("allFiles()", "numOfFiles()"),
    ),
    f"{_DELTA}.VersionChecksum": ("numFiles()", "tableSizeBytes()", "setTransactions()", "allFiles()"),
    f"{_DELTA}.OptimisticTransaction": (
        *("readTxn()", "readWholeTable()", "writeFiles(org.apache.spark.sql.Dataset)"),
        f"updateMetadata({_DELTA}.actions.Metadata,boolean)",
        f"updateMetadataForNewTable({_DELTA}.actions.Metadata)",
        f"commit({_SEQ},{_DELTA}.DeltaOperations$Operation)",
    ),
    _WRITE: (f"(org.apache.spark.sql.SaveMode{f',{_OPTION}' * 8})",),
    _CREATE: (f"({_DELTA}.actions.Metadata,boolean,boolean,{_OPTION})",),
    f"{_DELTA}.actions.Metadata": (
        "json()",
        "columnMappingMode()",
        "configuration()",
        f"({'java.lang.String,' * 3}{_DELTA}.actions.Format,java.lang.String,{_SEQ},{_MAP},{_OPTION})",
    ),
    f"{_DELTA}.actions.Format": (f"(java.lang.String,{_MAP})",),
    f"{_DELTA}.actions.SetTransaction": (f"(java.lang.String,long,{_OPTION})",),
    f"{_DELTA}.actions.Action": ("fromJson(java.lang.String)",),
    _FILE: (
        *("deletionVector()", "removeWithTimestamp(long,boolean)", "numLogicalRecords()"),
        f"removeRows({_VECTOR},boolean,boolean)",
    ),
    _VECTOR: (
        *("isOnDisk()", "uniqueId()", "sizeInBytes()", "offset()", f"absolutePath({_PATH})"),
        f"onDiskWithRelativePath(java.util.UUID,java.lang.String,int,long,{_OPTION},{_OPTION})",
    ),
    BITMAP: (
        *("()", "readFrom(byte[])", "toArray()", f"addAll({_SEQ})", "runOptimize()", "cardinality()"),
        "serializeAsByteArray(scala.Enumeration$Value)",
    ),
    _BITMAP_FORMAT: ("Portable()",),
    VECTOR_STORE: (
        "(org.apache.hadoop.conf.Configuration)",
        f"read({_VECTOR},{_PATH})",
        f"pathWithFileSystem({_PATH})",
        f"generateFileNameInTable({_DELTA}.util.PathWithFileSystem,java.util.UUID,java.lang.String)",
        f"createWriter({_DELTA}.util.PathWithFileSystem)",
    ),
    f"{_DELTA}.util.JsonUtils": ("mapper()",),
    _VERSIONED: (f"apply({_SESSION},{_PATH},{_OPTION},{_OPTION},{_MAP},{_OPTION})",),
    "io.delta.tables.DeltaTable": (f"(org.apache.spark.sql.Dataset,{_VERSIONED})",),
}

# The same of Spark, whose files are read without a look at each of them.
SHAPES_OF_FILES: Final[Mapping[str, Sequence[str]]] = {
    f"{_SOURCES}.FileStatusCache": (
        f"getOrCreate({_SESSION})",
        f"putLeafFiles({_PATH},org.apache.hadoop.fs.FileStatus[])",
    ),
    f"{_SOURCES}.InMemoryFileIndex": (
        f"({_SESSION},{_SEQ},{_MAP},{_OPTION},{_SOURCES}.FileStatusCache,{_OPTION},{_OPTION})",
    ),
    f"{_SOURCES}.HadoopFsRelation": (
        f"({_SOURCES}.FileIndex,{_STRUCT},{_STRUCT},{_OPTION},{_SOURCES}.FileFormat,{_MAP},{_SESSION})",
    ),
}


# --- what is there ----------------------------------------------------------------------------------------------------


def misfit(spark: SparkSession) -> str | None:
    """What this Spark's Delta lacks of SHAPES, None if it has all of it."""
    if str(spark.conf.get(OPTION, "true")).lower() == "false":
        return f"{OPTION} is false"
    return _first_missing(spark.sparkContext)


def require(spark: SparkSession, path: str) -> None:
    """Raises NeedsDeltaInternals, for the table at `path`, if SHAPES are not there."""
    lacks = misfit(spark)
    if lacks is not None:
        raise NeedsDeltaInternals(path=path, lacks=lacks)


def reads_files(spark: SparkSession) -> bool:
    """Whether Spark has SHAPES_OF_FILES."""
    return _files_fit(spark.sparkContext)


@lru_cache(maxsize=1)
def _first_missing(context: SparkContext) -> str | None:
    return next(_missing(context, SHAPES), None)


@lru_cache(maxsize=1)
def _files_fit(context: SparkContext) -> bool:
    return next(_missing(context, SHAPES_OF_FILES), None) is None


def _missing(context: SparkContext, shapes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """All of a class's methods come as one text: a call for each would be a thousand calls."""
    jvm: Any = context._jvm
    loaded, texts = getattr(jvm, "py4j.reflection.ReflectionUtil"), getattr(jvm, ARRAYS)
    for name, wanted in shapes.items():
        short = name.rpartition(".")[2]
        try:
            found = loaded.classForName(name)
            listed = f"{texts.toString(found.getMethods())}{texts.toString(found.getConstructors())}"
        except Py4JError:
            yield f"class {short}"
            continue
        for one in wanted:
            # A method stands behind the class that declares it, which may be a parent.
            if (f"{name}{one}" if one.startswith("(") else f".{one}") not in listed:
                method, _, parameters = one.partition("(")
                count = len([p for p in parameters.rstrip(")").split(",") if p])
                yield f"{short}{'.' if method else ''}{method} of {count} parameters"


# --- a version of a table ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeltaSnapshot:
    """Delta's snapshot of one version, and the log that it is of."""

    spark: SparkSession
    log: Any
    snapshot: Any

    @property
    def version(self) -> int:
        """-1 if there is no version yet."""
        return int(self.snapshot.version())

    @property
    def files(self) -> int:
        checksum = self.snapshot.checksumOpt()
        return int(checksum.get().numFiles() if checksum.isDefined() else self.snapshot.numOfFiles())

    @property
    def bytes(self) -> int | None:
        """None if the version's checksum file is missing."""
        checksum = self.snapshot.checksumOpt()
        return int(checksum.get().tableSizeBytes()) if checksum.isDefined() else None

    def position(self, application: str) -> Lsn | None:
        """Taken from the version's checksum file, which every commit writes with all transactions in it; where that is
        missing, from the whole log, which costs a Spark job or two."""
        checksum = self.snapshot.checksumOpt()
        listed = checksum.get().setTransactions() if checksum.isDefined() else None
        if listed is not None and listed.isDefined():
            transactions = listed.get()
            for n in range(transactions.size()):
                transaction = transactions.apply(n)
                if transaction.appId() == application:
                    return Lsn(int(transaction.version()))
            return None
        newest = self.snapshot.transactions().get(application)
        return Lsn(int(newest.get())) if newest.isDefined() else None

    @property
    def is_mapped(self) -> bool:
        return str(self.snapshot.metadata().columnMappingMode().name()) != "none"

    @property
    def schema(self) -> str:
        """As JSON."""
        return str(self.snapshot.schema().json())

    @property
    def metadata(self) -> dict[str, Any]:
        """Delta's action `metaData`."""
        described: dict[str, Any] = json.loads(self.snapshot.metadata().json())["metaData"]
        return described

    @property
    def protocol(self) -> dict[str, Any]:
        """Delta's action `protocol`."""
        described: dict[str, Any] = json.loads(self.snapshot.protocol().json())["protocol"]
        return described

    def rows(self) -> DataFrame:
        """Those of the version, for ever."""
        return DataFrame(self._frame(stays=True), self.spark)

    def _frame(self, *, stays: bool) -> Any:
        """The JVM's: the version as it is for ever, or, for a command, as the table is by now."""
        spark = self.spark
        relation = self.log.createRelation(
            sequence(spark, array_list(spark)), option(spark, self.snapshot), option(spark), stays
        )
        return spark._jsparkSession.baseRelationToDataFrame(relation)

    def rows_of(self, added: Any) -> DataFrame:
        """The rows of some of its files, given as a Java list of Delta's actions."""
        frame = self.log.createDataFrame(self.snapshot, sequence(self.spark, added), False, option(self.spark))
        return DataFrame(frame, self.spark)

    @property
    def added(self) -> Any:
        """Delta's actions for its files, as the JVM's data set."""
        return self.snapshot.allFiles()

    def files_in_checksum(self) -> Any:
        """Delta's actions for its files, where its checksum file has them all, as that of a table of up to fifty files
        has; else None."""
        checksum = self.snapshot.checksumOpt()
        listed = checksum.get().allFiles() if checksum.isDefined() else None
        return listed.get() if listed is not None and listed.isDefined() else None

    def listed_files(self) -> tuple[Any, list[dict[str, Any]]]:
        """The same of any table, in the JVM and as JSON has them: by a Spark job where its checksum file lacks them."""
        actions = self.files_in_checksum()
        if actions is None:
            actions = sequence(self.spark, self.added.collectAsList())
        return actions, json_of(self.spark, actions)

    def as_target(self, path: str) -> Any:
        """The table for a command, whose transaction reads the newest version by itself: a `DeltaTable` of the JVM's.

        `DeltaTable.forPath` looks first whether there is a log, then for the folder that has one, and lists it: on an
        object store five requests for what is known. A command that was analysed on a version with other columns than
        the newest one has is refused by Delta, and that is contested.
        """
        spark, nothing = self.spark, option(self.spark)
        known = java_class(spark, _VERSIONED).apply(
            spark._jsparkSession, java_class(spark, _PATH)(path), nothing, nothing, _scala_map(spark, {}), nothing
        )
        return java_class(spark, "io.delta.tables.DeltaTable")(self._frame(stays=False), known)


def newest(spark: SparkSession, path: str) -> DeltaSnapshot:
    """The newest version of the table, read from its log now."""
    clock = java_class(spark, "java.lang.System")
    asked_at = now = int(clock.currentTimeMillis())
    logs = java_class(spark, f"{_DELTA}.DeltaLog")
    # Delta keeps of a listing the millisecond in which it began. In the one that is going on, a log may have been
    # listed before we asked; from the next one on, whatever is listed is listed behind that.
    while now == asked_at:
        now = int(clock.currentTimeMillis())
    log = logs.forTable(spark._jsparkSession, path)
    # A log that this driver had not seen was listed by that; one that it knows is listed now.
    return DeltaSnapshot(spark, log, log.update(False, option(spark, now), option(spark)))


def committed(spark: SparkSession, path: str) -> DeltaSnapshot:
    """The newest version that this driver knows: what it committed itself, or a later one. The log is not read."""
    log = java_class(spark, f"{_DELTA}.DeltaLog").forTable(spark._jsparkSession, path)
    return DeltaSnapshot(spark, log, log.unsafeVolatileSnapshot())


def json_of(spark: SparkSession, of_java: Any) -> Any:
    """What Delta's own JSON says of it."""
    return json.loads(java_class(spark, f"{_DELTA}.util.JsonUtils").mapper().writeValueAsString(of_java))


def _scala_map(spark: SparkSession, entries: Mapping[str, str]) -> Any:
    java_map = java_class(spark, "java.util.HashMap")()
    for key, value in entries.items():
        java_map.put(key, value)
    return java_class(spark, "org.apache.spark.api.python.PythonUtils").toScalaMap(java_map)


# --- a commit ---------------------------------------------------------------------------------------------------------


class Transaction:
    """One commit on a pinned version. What it reads decides which commits of others in between are a conflict."""

    def __init__(self, pinned: DeltaSnapshot) -> None:
        self._spark = pinned.spark
        self._pinned = pinned
        self._delta = pinned.log.startTransaction(option(pinned.spark), option(pinned.spark, pinned.snapshot))
        self._now = java_class(pinned.spark, "java.lang.System").currentTimeMillis()
        self._actions = array_list(pinned.spark)
        self._written: list[Any] = []

    @property
    def now_ms(self) -> int:
        return int(self._now)

    def read_all(self) -> None:
        """Any file that comes or goes in between is a conflict."""
        self._delta.readWholeTable()

    def move(self, application: str, end: Lsn) -> None:
        """Set a position. `txnVersion(id)` makes a rival's move a conflict too, but reads the whole log for it."""
        self._delta.readTxn().addOne(application)
        position = java_class(self._spark, f"{_DELTA}.actions.SetTransaction")
        self._actions.add(position(application, int(end), option(self._spark, self._now)))

    def add(self, action: Any) -> None:
        """One of Delta's own actions."""
        self._actions.add(action)

    def add_json(self, action: str) -> None:
        self._actions.add(_action(self._spark, action))

    def write(self, frame: DataFrame) -> None:
        """Files of the frame's rows, which Spark writes now."""
        self._written.append(self._delta.writeFiles(frame._jdf))

    def remove(self, file: Any) -> None:
        self._actions.add(file.removeWithTimestamp(self._now, True))

    def remove_all(self) -> None:
        for file in self._pinned.added.collectAsList():
            self.remove(file)

    def describe(self, metadata: Mapping[str, Any]) -> None:
        """Give the table this action `metaData`."""
        self._delta.updateMetadata(_action(self._spark, json.dumps({"metaData": metadata})), False)

    def commit(self) -> int:
        """The number of rows in the files that Spark wrote.

        DESCRIBE HISTORY calls it a write. Delta's own MERGE would have to name how long it searched and wrote, and of a
        "manual update" Delta derives no checksum, so that each would cost two jobs to read the log anew.
        """
        spark = self._spark
        append = java_class(spark, "org.apache.spark.sql.SaveMode").Append
        actions, rows = sequence(spark, self._actions), 0
        for files in self._written:
            actions = actions.appendedAll(files)
            counted = (files.apply(n).numLogicalRecords() for n in range(files.size()))
            rows += sum(int(records.get()) for records in counted if records.isDefined())
        self._delta.commit(actions, java_class(spark, _WRITE)(append, *[option(spark)] * 8))
        return rows

    def commit_new_table(self, schema: StructType, properties: Mapping[str, str]) -> None:
        """An empty table, on a version that is none."""
        spark, actions = self._spark, f"{_DELTA}.actions"
        metadata = java_class(spark, f"{actions}.Metadata")(
            str(java_class(spark, "java.util.UUID").randomUUID()),
            None,
            None,
            java_class(spark, f"{actions}.Format")("parquet", _scala_map(spark, {})),
            schema.json(),
            sequence(spark, array_list(spark)),
            _scala_map(spark, properties),
            option(spark, self._now),
        )
        self._delta.updateMetadataForNewTable(metadata)
        created = java_class(spark, _CREATE)(metadata, False, False, option(spark))
        self._delta.commit(sequence(spark, self._actions), created)


def _action(spark: SparkSession, text: str) -> Any:
    return java_class(spark, f"{_DELTA}.actions.Action").fromJson(text)


# --- deletion vectors -------------------------------------------------------------------------------------------------


def vector_store(spark: SparkSession) -> Any:
    """Delta's reader and writer of vectors."""
    return java_class(spark, VECTOR_STORE)(spark._jsparkSession.sessionState().newHadoopConf())


def new_bitmap(spark: SparkSession) -> Any:
    """A vector that masks nothing."""
    return java_class(spark, BITMAP)()


def bitmap_of(spark: SparkSession, content: bytes) -> Any:
    """A vector as its file has it."""
    return java_class(spark, BITMAP).readFrom(bytearray(content))


def bytes_of(spark: SparkSession, bitmap: Any) -> bytearray:
    """The same, the other way."""
    return bytearray(bitmap.serializeAsByteArray(java_class(spark, _BITMAP_FORMAT).Portable()))


def descriptor(spark: SparkSession, number: Any, size: int, masked: int, offset: Any) -> Any:
    """Delta's description of a vector of `size` bytes that masks so many rows, at `offset` of the file of that number
    (a Java UUID) in the table's folder."""
    described = java_class(spark, _VECTOR).onDiskWithRelativePath
    return described(number, "", size, masked, option(spark, offset), option(spark))


# --- Spark's files ----------------------------------------------------------------------------------------------------


def parquet_rows(spark: SparkSession, of: StructType, files: Sequence[tuple[str, int]]) -> DataFrame:
    """The rows of Parquet files, given as URI and size, as `read.parquet` would have them, which asks of each whether
    it is there, whether it is a folder, and how long it is: on S3 a listing and two requests more. Here Spark finds
    what it would be told where it keeps such answers (`FileStatusCache`); where it is set to keep none, it asks."""
    jvm_session = spark._jsparkSession
    status_class, path_class = java_class(spark, "org.apache.hadoop.fs.FileStatus"), java_class(spark, _PATH)
    answers = java_class(spark, f"{_SOURCES}.FileStatusCache").getOrCreate(jvm_session)
    configuration = jvm_session.sessionState().newHadoopConf()
    paths = array_list(spark)
    for uri, size in files:
        path = path_class(uri)
        path = path.getFileSystem(configuration).makeQualified(path)
        answer = status_class(size, False, 1, size, 0, path)
        answers.putLeafFiles(path, array(spark, status_class, answer))
        paths.add(path)
    nothing, no_options = option(spark), _scala_map(spark, {})
    columns = jvm_session.parseDataType(of.json())
    index = java_class(spark, f"{_SOURCES}.InMemoryFileIndex")(
        jvm_session, sequence(spark, paths), no_options, option(spark, columns), answers, nothing, nothing
    )
    file_format = java_class(spark, f"{_SOURCES}.parquet.ParquetFileFormat")()
    relation = java_class(spark, f"{_SOURCES}.HadoopFsRelation")(
        index, index.partitionSchema(), columns, nothing, file_format, no_options, jvm_session
    )
    return DataFrame(jvm_session.baseRelationToDataFrame(relation), spark)
