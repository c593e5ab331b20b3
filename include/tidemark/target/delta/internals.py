"""Holds every call into Delta's and Spark's internal classes, and checks at the session's start that they exist.

A class is internal if it belongs neither to Delta's public API (DataFrames, `DeltaTable`, SQL, settings) nor to
Spark's. Such classes change without notice: `DeltaOperations.Write` has three options in Delta 4.0, six in 4.2, and
eight in 4.4. SHAPES lists the classes and methods called here, as Java's reflection spells them. A vendor's own Delta,
an older or a newer one may lack some of them. Then `misfit` names the first that is missing, and `public_path` reads
and writes the tables instead.

Internal classes are needed for two things: a transaction on the very version whose position was tested (R5), and
commits of rows without a Spark job.
"""

from __future__ import annotations

import json
import os
import time
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
from tidemark.target.delta import hadoop_files
from tidemark.target.delta.jvm import array_list, hadoop_configuration, java_class, option, sequence

# Its `toString` accepts an array of any class; py4j cannot pass such an array to java.util.Arrays.
ARRAYS: Final = "org.apache.commons.lang3.ArrayUtils"

# "false" forces `public_path`, as if a shape were missing: for tests, and for an operator whom an error text tells so.
OPTION: Final = "spark.tidemark.deltaInternals"

_DELTA: Final = "org.apache.spark.sql.delta"
_SESSION: Final = "org.apache.spark.sql.SparkSession"
_OPTION: Final = "scala.Option"
_SEQ: Final = "scala.collection.immutable.Seq"
_MAP: Final = "scala.collection.immutable.Map"
_PATH: Final = "org.apache.hadoop.fs.Path"

BITMAP: Final = f"{_DELTA}.deletionvectors.RoaringBitmapArray"
VECTOR_STORE: Final = f"{_DELTA}.storage.dv.HadoopFileSystemDVStore"
_BITMAP_FORMAT: Final = f"{_DELTA}.deletionvectors.RoaringBitmapArrayFormat"
_VECTOR: Final = f"{_DELTA}.actions.DeletionVectorDescriptor"
_FILE: Final = f"{_DELTA}.actions.AddFile"
_VERSIONED: Final = f"{_DELTA}.catalog.DeltaTableV2"
_WRITE: Final = f"{_DELTA}.DeltaOperations$Write"
_CREATE: Final = f"{_DELTA}.DeltaOperations$CreateTable"

# Class -> its methods with their parameters; a constructor has no name.
SHAPES: Final[Mapping[str, Sequence[str]]] = {
    f"{_DELTA}.DeltaLog": (
        f"forTable({_SESSION},java.lang.String)",
        f"update(boolean,{_OPTION},{_OPTION})",
        "unsafeVolatileSnapshot()",
        "dataPath()",
        f"startTransaction({_OPTION},{_OPTION})",
        f"createRelation({_SEQ},{_OPTION},{_OPTION},boolean)",
        f"createDataFrame({_DELTA}.SnapshotDescriptor,{_SEQ},boolean,{_OPTION})",
        f"checkpoint({_DELTA}.Snapshot,{_OPTION})",
        f"doLogCleanup({_DELTA}.Snapshot,{_OPTION})",
    ),
    f"{_DELTA}.Snapshot": (
        *("version()", "metadata()", "protocol()", "schema()", "checksumOpt()", "transactions()"),
        *("allFiles()", "numOfFiles()", "logSegment()"),
    ),
    f"{_DELTA}.LogSegment": ("checkpointProvider()", "deltas()"),
    f"{_DELTA}.UninitializedCheckpointProvider": ("version()",),
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
    ),
    f"{_DELTA}.util.JsonUtils": ("mapper()",),
    _VERSIONED: (f"apply({_SESSION},{_PATH},{_OPTION},{_OPTION},{_MAP},{_OPTION})",),
    "io.delta.tables.DeltaTable": (f"(org.apache.spark.sql.Dataset,{_VERSIONED})",),
}


# --- the check of the classes -----------------------------------------------------------------------------------------


def misfit(spark: SparkSession) -> str | None:
    """The first of SHAPES that this Spark's Delta lacks, None if it has all of them."""
    if str(spark.conf.get(OPTION, "true")).lower() == "false":
        return f"{OPTION} is false"
    return _first_missing(spark.sparkContext)


def require(spark: SparkSession, path: str) -> None:
    """Raise NeedsDeltaInternals, for the table at `path`, if one of SHAPES is missing."""
    lacks = misfit(spark)
    if lacks is not None:
        raise NeedsDeltaInternals(path=path, lacks=lacks)


@lru_cache(maxsize=1)
def _first_missing(context: SparkContext) -> str | None:
    return next(_missing(context, SHAPES), None)


def _missing(context: SparkContext, shapes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the missing shapes. The JVM returns all methods of a class as one text, which saves a thousand calls."""
    jvm: Any = context._jvm
    reflection, arrays = getattr(jvm, "py4j.reflection.ReflectionUtil"), getattr(jvm, ARRAYS)
    for name, wanted in shapes.items():
        short = name.rpartition(".")[2]
        try:
            java_type = reflection.classForName(name)
            listed = f"{arrays.toString(java_type.getMethods())}{arrays.toString(java_type.getConstructors())}"
        except Py4JError:
            yield f"class {short}"
            continue
        for shape in wanted:
            # A method's text begins with the class that declares it, which may be a parent class.
            if (f"{name}{shape}" if shape.startswith("(") else f".{shape}") not in listed:
                method, _, parameters = shape.partition("(")
                count = len([p for p in parameters.rstrip(")").split(",") if p])
                yield f"{short}{'.' if method else ''}{method} of {count} parameters"


# --- a version of a table ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeltaSnapshot:
    """Delta's snapshot of one version, and its DeltaLog."""

    spark: SparkSession
    log: Any
    snapshot: Any

    @property
    def version(self) -> int:
        """The version's number, -1 if the table has no version yet."""
        return int(self.snapshot.version())

    @property
    def files(self) -> int:
        checksum = self.snapshot.checksumOpt()
        return int(checksum.get().numFiles() if checksum.isDefined() else self.snapshot.numOfFiles())

    @property
    def bytes(self) -> int | None:
        """The size of the version's data files, None if its checksum file is missing."""
        checksum = self.snapshot.checksumOpt()
        return int(checksum.get().tableSizeBytes()) if checksum.isDefined() else None

    @property
    def checkpoint_version(self) -> int:
        """The version of the checkpoint that this version was read from, -1 if there was none."""
        return int(self.snapshot.logSegment().checkpointProvider().version())

    def write_checkpoint(self) -> None:
        """Have Delta write a checkpoint of this version by a Spark job, and clean up the log."""
        self.log.checkpoint(self.snapshot, option(self.spark))

    def clean_up_log(self) -> None:
        """Have Delta remove commits and checkpoints that are older than the table's log retention."""
        self.log.doLogCleanup(self.snapshot, option(self.spark))

    def position(self, application: str) -> Lsn | None:
        """The position of an application, None if it has none.

        Every commit writes a checksum file with all positions in it. If that file is missing, the whole log is read,
        which costs one or two Spark jobs.
        """
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
        """The schema as JSON."""
        return str(self.snapshot.schema().json())

    @property
    def metadata(self) -> dict[str, Any]:
        """Delta's action `metaData`."""
        action: dict[str, Any] = json.loads(self.snapshot.metadata().json())["metaData"]
        return action

    @property
    def protocol(self) -> dict[str, Any]:
        """Delta's action `protocol`."""
        action: dict[str, Any] = json.loads(self.snapshot.protocol().json())["protocol"]
        return action

    def rows(self) -> DataFrame:
        """The rows of this version, whatever is committed later."""
        return DataFrame(self._frame(stays=True), self.spark)

    def _frame(self, *, stays: bool) -> Any:
        """The JVM's DataFrame of this version, or, unless it `stays`, of the newest version when a command runs."""
        spark = self.spark
        relation = self.log.createRelation(
            sequence(spark, array_list(spark)), option(spark, self.snapshot), option(spark), stays
        )
        return spark._jsparkSession.baseRelationToDataFrame(relation)

    def rows_of(self, added: Any) -> DataFrame:
        """The rows of some of the version's files, given as a Java list of AddFile actions."""
        frame = self.log.createDataFrame(self.snapshot, sequence(self.spark, added), False, option(self.spark))
        return DataFrame(frame, self.spark)

    @property
    def added(self) -> Any:
        """The version's AddFile actions as a Dataset of the JVM."""
        return self.snapshot.allFiles()

    def files_in_checksum(self) -> Any:
        """The version's AddFile actions from its checksum file, None if it does not list them.

        The checksum file of a table with up to fifty files lists them all.
        """
        checksum = self.snapshot.checksumOpt()
        listed = checksum.get().allFiles() if checksum.isDefined() else None
        return listed.get() if listed is not None and listed.isDefined() else None

    def listed_files(self) -> tuple[Any, list[dict[str, Any]]]:
        """The version's AddFile actions, as objects of the JVM and as JSON.

        If the checksum file does not list them, a Spark job reads them from the log.
        """
        actions = self.files_in_checksum()
        if actions is None:
            actions = sequence(self.spark, self.added.collectAsList())
        return actions, json_of(self.spark, actions)

    def as_target(self, path: str) -> Any:
        """A `DeltaTable` of the JVM for a command, whose transaction reads the newest version by itself.

        `DeltaTable.forPath` checks that there is a log, searches the folder that has one, and lists it. On an object
        store that costs five requests for facts that are known here. If the newest version has other columns than the
        version that the command was analysed on, Delta raises an error that `is_contested` recognises.
        """
        spark, nothing = self.spark, option(self.spark)
        delta_table = java_class(spark, _VERSIONED).apply(
            spark._jsparkSession, java_class(spark, _PATH)(path), nothing, nothing, _scala_map(spark, {}), nothing
        )
        return java_class(spark, "io.delta.tables.DeltaTable")(self._frame(stays=False), delta_table)


def newest(spark: SparkSession, path: str) -> DeltaSnapshot:
    """The newest version of the table, read from its log now. A newer checkpoint of the same version may be unknown."""
    known = committed(spark, path)
    return known if _is_newest(known, path) else newest_listed(spark, path)


def newest_listed(spark: SparkSession, path: str) -> DeltaSnapshot:
    """The newest version of the table with its newest checkpoint, by a new listing of its log."""
    logs = java_class(spark, f"{_DELTA}.DeltaLog")
    # Delta records the millisecond in which a listing of the log began. A listing of the present millisecond may have
    # begun before this call. So wait for the next millisecond, and demand a listing that began then or later. Python
    # and its JVM have one clock.
    now = called_at = time.time_ns() // 1_000_000
    while now <= called_at:
        time.sleep(0.0005)
        now = time.time_ns() // 1_000_000
    log = logs.forTable(spark._jsparkSession, path)
    # `forTable` lists a log that is new to this driver; `update` lists a log that the driver already had.
    return DeltaSnapshot(spark, log, log.update(False, option(spark, now), option(spark)))


def _is_newest(known: DeltaSnapshot, path: str) -> bool:
    """Whether this version is the newest one, by its commit file and the name of the next one on this machine's disk.

    Commits have consecutive numbers. To list a log takes the longer the more files it has, and the log of a table that
    is followed for a week has half a million. Returns False if only a listing can tell: of a log elsewhere, or if the
    version's commit file is another one by now, as that of a table that was restored or created anew.
    """
    folder, commits = hadoop_files.local_path(known.spark, f"{path}/_delta_log"), known.snapshot.logSegment().deltas()
    if folder is None or commits.isEmpty():
        return False
    version, written_ms = known.version, int(commits.last().getModificationTime())
    try:
        is_same = os.stat(f"{folder}/{version:020}.json").st_mtime_ns // 1_000_000 == written_ms
    except FileNotFoundError:
        return False
    return is_same and not os.path.lexists(f"{folder}/{version + 1:020}.json")


def committed(spark: SparkSession, path: str) -> DeltaSnapshot:
    """The newest version in this driver's memory: its own last commit, or a later version. The log is not read."""
    log = java_class(spark, f"{_DELTA}.DeltaLog").forTable(spark._jsparkSession, path)
    return DeltaSnapshot(spark, log, log.unsafeVolatileSnapshot())


def json_of(spark: SparkSession, of_java: Any) -> Any:
    """A Java object of Delta's as Delta's own JSON, parsed."""
    return json.loads(java_class(spark, f"{_DELTA}.util.JsonUtils").mapper().writeValueAsString(of_java))


def _scala_map(spark: SparkSession, entries: Mapping[str, str]) -> Any:
    java_map = java_class(spark, "java.util.HashMap")()
    for key, value in entries.items():
        java_map.put(key, value)
    return java_class(spark, "org.apache.spark.api.python.PythonUtils").toScalaMap(java_map)


# --- a commit ---------------------------------------------------------------------------------------------------------


class Transaction:
    """One commit on a pinned version. The reads declared here decide which commits of other writers are conflicts."""

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
        """Declare a read of the whole table: any commit in between that adds or removes a file is a conflict."""
        self._delta.readWholeTable()

    def move(self, application: str, end: Lsn) -> None:
        """Set a position, and make another driver's commit of the same position a conflict.

        Delta's `txnVersion(id)` declares the same conflict, but reads the whole log for it.
        """
        self._delta.readTxn().addOne(application)
        position = java_class(self._spark, f"{_DELTA}.actions.SetTransaction")
        self._actions.add(position(application, int(end), option(self._spark, self._now)))

    def add(self, action: Any) -> None:
        """Add one of Delta's own actions to the commit."""
        self._actions.add(action)

    def add_json(self, action: str) -> None:
        self._actions.add(_action(self._spark, action))

    def write(self, frame: DataFrame) -> None:
        """Have Spark write the frame's rows to files now, and add these to the commit."""
        self._written.append(self._delta.writeFiles(frame._jdf))

    def remove_all(self) -> None:
        for file in self._pinned.added.collectAsList():
            self._actions.add(file.removeWithTimestamp(self._now, True))

    def describe(self, metadata: Mapping[str, Any]) -> None:
        """Replace the table's `metaData` action."""
        self._delta.updateMetadata(_action(self._spark, json.dumps({"metaData": metadata})), False)

    def commit(self) -> int:
        """Commit. Returns the number of rows in the files that Spark wrote.

        DESCRIBE HISTORY shows the operation WRITE. Delta's MERGE operation would need the times of search and write.
        For a "manual update" Delta writes no checksum file, so every later read would cost two jobs over the log.
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
        """Commit the first version of a table, without rows."""
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
    """Delta's reader of deletion vectors."""
    return java_class(spark, VECTOR_STORE)(hadoop_configuration(spark))


def new_bitmap(spark: SparkSession) -> Any:
    """A vector that masks nothing."""
    return java_class(spark, BITMAP)()


def bitmap_of(spark: SparkSession, content: bytes) -> Any:
    """The vector with this content, in the format of vector files."""
    return java_class(spark, BITMAP).readFrom(bytearray(content))


def bytes_of(spark: SparkSession, bitmap: Any) -> bytearray:
    """The vector's content, in the format of vector files."""
    return bytearray(bitmap.serializeAsByteArray(java_class(spark, _BITMAP_FORMAT).Portable()))


def descriptor(spark: SparkSession, number: Any, size: int, masked: int, offset: Any) -> Any:
    """Delta's descriptor of a vector of `size` bytes that masks `masked` rows.

    The vector lies at `offset` of the vector file in the table's folder whose name has `number`, a Java UUID.
    """
    create = java_class(spark, _VECTOR).onDiskWithRelativePath
    return create(number, "", size, masked, option(spark, offset), option(spark))
