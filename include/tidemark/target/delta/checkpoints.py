"""Writes checkpoints of Delta tables: the last checkpoint and the commits behind it -> the actions that still hold.

Delta in Spark writes a checkpoint by a Spark job, as a part of every n-th commit. In a new driver this job takes five
seconds and eight CPU seconds, in a warm driver one second, and the commit itself a tenth of a second. So the tables
have NEVER as Delta's own interval, and a driver calls `write_if_due` after it has written a plan's result. If it dies
before that, the next driver writes the checkpoint: commits are counted from the last checkpoint that exists.

The actions are reconciled here as the protocol says (Delta protocol, "Action Reconciliation", "Checkpoints"). Delta
Kernel could write them too, but it drops the removed files of the last checkpoint, and VACUUM would then delete files
that readers of older versions need. What this module does not know it leaves to Delta: table features other than
FEATURES, fields other than those of SCHEMA, and tables with more than MAX_ACTIONS. The numbers of files and bytes must
be those of the version's checksum file. On `public_path` Delta writes all checkpoints, within its commits.
"""

from __future__ import annotations

import io
import json
import logging
import re
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tidemark.names import spark_identifier
from tidemark.storage import log_store_settings
from tidemark.target.delta import hadoop_files, internals, log_files
from tidemark.target.delta.internals import DeltaSnapshot
from tidemark.target.delta.jvm import hadoop_configuration, java_class
from tidemark.target.merge_failures import condition_of, stack_frames

log = logging.getLogger(__name__)

# The least number of commits between two checkpoints of a table, and how many more there may be. The table's path
# decides the number, so tables that are merged together do not write their checkpoints together.
LEAST_COMMITS: Final = 40
SPREAD: Final = 20

# A checkpoint repeats all files that were removed in the last days, 64 bytes for each commit of a table that is updated
# all the time, and the log keeps checkpoints for weeks. So a large one is followed by more commits: one for each
# hundred actions, which is a commit's own size, and at most MOST_FURTHER, since readers read every commit behind it.
# With a commit every two seconds, a week has 12 GB of checkpoints by calculation, in place of 60.
ACTIONS_A_COMMIT: Final = 100
MOST_FURTHER: Final = 200

# The table property with the interval of Delta's own checkpoints.
PROPERTY: Final = "delta.checkpointInterval"
NEVER: Final = "1000000000"

# A table with more actions is left to Delta, since all of them are in this process's memory at once: a gigabyte. Most
# are files that were removed in the days for which older versions are kept.
MAX_ACTIONS: Final = 400_000

# How often a driver has Delta remove the commits that are older than the table's log retention. Delta counts in days.
CLEAN_UP_S: Final = 6 * 3600.0

FEATURES: Final = frozenset(
    {"appendOnly", "columnMapping", "deletionVectors", "invariants", "timestampNtz", "typeWidening"}
)
# Properties that change what a checkpoint holds.
_PROPERTIES_OF_CHECKPOINTS: Final = ("delta.checkpoint.", "delta.checkpointPolicy", "delta.setTransactionRetention")
_RETENTION: Final = "delta.deletedFileRetentionDuration"
_RETENTION_BY_DEFAULT: Final = "interval 7 days"
_DURATION: Final = re.compile(r"interval (\d+) (hour|day|week)s?", re.IGNORECASE)
_HOURS: Final = {"hour": 1, "day": 24, "week": 168}

_TEXTS: Final = pa.map_(pa.string(), pa.string())
_VECTOR: Final = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "offset": pa.int32(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
        "maxRowIndex": pa.int64(),
    }
)
SCHEMA: Final = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "tags": _TEXTS,
                "deletionVector": _VECTOR,
            }
        ),
        "remove": pa.struct(
            {
                "path": pa.string(),
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
                "extendedFileMetadata": pa.bool_(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
                "stats": pa.string(),
                "tags": _TEXTS,
                "deletionVector": _VECTOR,
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": _TEXTS,
                "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": pa.list_(pa.string()),
                "writerFeatures": pa.list_(pa.string()),
            }
        ),
    }
)
# Columns that Delta derives from others in its own checkpoints.
_DERIVED: Final = frozenset({"stats_parsed", "partitionValues_parsed"})

# By path, what this driver knows: the version of the last checkpoint, the number of actions in the last one that it
# read or wrote, when the log was cleaned up, and whether Delta writes the checkpoints.
_last: dict[str, int] = {}
_actions_in: dict[str, int] = {}
_cleaned_at: dict[str, float] = {}
_by_delta: set[str] = set()

Action = tuple[str, dict[str, Any]]


class LeftToDelta(Exception):
    """The log has something that only Delta itself can put into a checkpoint."""


def commits_between(path: str) -> int:
    """The number of commits between two checkpoints of the table at `path`."""
    further = min(_actions_in.get(path, 0) // ACTIONS_A_COMMIT, MOST_FURTHER)
    return LEAST_COMMITS + zlib.crc32(path.encode()) % SPREAD + further


def write_if_due(spark: SparkSession, path: str, version: int | None = None) -> bool:
    """Write a checkpoint of the version that this driver read or committed last, if the last one is far enough behind.

    `version` is that version if the caller knows it, which saves calls to the JVM. Returns whether a checkpoint was
    written. An error is logged and not raised, because the table is complete without it.
    """
    last = _last.get(path)
    if version is not None and last is not None and last <= version < last + commits_between(path):
        return False
    if path in _by_delta:
        return False
    try:
        if internals.misfit(spark) is not None:
            _give_delta_an_interval(spark, path)
            return False
        return _write_if_due(spark, path)
    except Exception as failed:  # its message may quote values, so it is not logged
        log.warning("No checkpoint of %s was written (%s):\n%s", path, condition_of(failed), stack_frames(failed))
        return False


def _write_if_due(spark: SparkSession, path: str) -> bool:
    committed = internals.committed(spark, path)
    known = _last.get(path, -1)
    if known > committed.version:  # another table has this path by now
        known = -1
    last = _last[path] = max(known, committed.checkpoint_version)
    is_due = committed.version - last >= commits_between(path)
    if not is_due or committed.metadata["configuration"].get(PROPERTY) != NEVER:
        return False
    _last[path] = committed.version  # also if it fails: then the next try is as many commits away
    try:
        _write(spark, path, committed)
    except Exception as failed:
        if not isinstance(failed, LeftToDelta):
            log.warning(
                "Delta writes the checkpoint of %s instead (%s):\n%s", path, condition_of(failed), stack_frames(failed)
            )
        committed.write_checkpoint()  # it logs errors and raises none
        if internals.newest_listed(spark, path).checkpoint_version < committed.version:
            log.warning("Delta did not write the checkpoint of %s, either", path)
            return False
        return True
    internals.newest_listed(spark, path)  # the next checkpoint is made from this one
    if time.monotonic() - _cleaned_at.get(path, float("-inf")) >= CLEAN_UP_S:
        _cleaned_at[path] = time.monotonic()
        committed.clean_up_log()
    return True


def _give_delta_an_interval(spark: SparkSession, path: str) -> None:
    """If the table was created by a driver whose Delta is the known one, it has no interval of Delta's own."""
    if log_files.newest(spark, path).metadata.get("configuration", {}).get(PROPERTY) == NEVER:
        interval = f"'{PROPERTY}' = '{commits_between(path)}'"
        spark.sql(f"ALTER TABLE delta.{spark_identifier(path)} SET TBLPROPERTIES ({interval})")
    _by_delta.add(path)


def _write(spark: SparkSession, path: str, committed: DeltaSnapshot) -> None:
    """Write the checkpoint file of a version, and name it in `_last_checkpoint`. Raises LeftToDelta."""
    log_store = _log_store(spark, path)
    bytes_of_files = committed.bytes
    _actions_in[path] = committed.files  # at least; also of a table that is left to Delta
    if bytes_of_files is None or committed.files > MAX_ACTIONS:
        raise LeftToDelta
    folder, last = f"{path}/_delta_log", committed.checkpoint_version
    previous = None
    if last >= 0:
        with hadoop_files.open_to_read(spark, f"{folder}/{last:020}.checkpoint.parquet") as opened:
            checkpoint = pq.ParquetFile(opened)
            _actions_in[path] = checkpoint.metadata.num_rows
            if checkpoint.metadata.num_rows > MAX_ACTIONS:
                raise LeftToDelta
            previous = checkpoint.read()
    commits = (
        _actions(hadoop_files.read_whole(spark, f"{folder}/{n:020}.json"))
        for n in range(last + 1, committed.version + 1)
    )
    table = reconciled(previous, commits, _expired_before_ms(committed.metadata["configuration"]))
    _check(table, committed, bytes_of_files)
    _actions_in[path] = table.num_rows
    content = io.BytesIO()
    pq.write_table(table, content, compression="zstd", compression_level=1)
    hadoop_files.write_whole(spark, f"{folder}/{committed.version:020}.checkpoint.parquet", content.getvalue())
    pointer = {
        "version": committed.version,
        "size": table.num_rows,
        "sizeInBytes": len(content.getvalue()),
        "numOfAddFiles": committed.files,
    }
    lines = java_class(spark, "java.util.ArrayList")()
    lines.add(json.dumps(pointer))
    configuration = hadoop_configuration(spark)
    place = java_class(spark, "org.apache.hadoop.fs.Path")(f"{folder}/_last_checkpoint")
    java_class(spark, log_store)(configuration).write(place, lines.iterator(), True, configuration)


def _log_store(spark: SparkSession, path: str) -> str:
    scheme = urlsplit(path).scheme or "file"
    named = spark.conf.get(log_store_settings.OF_SCHEMES.get(scheme, scheme), None)
    if named is None and scheme in log_store_settings.FENCING:
        named = log_store_settings.log_store({}, scheme)
    if named is None:
        raise LeftToDelta
    return named


def _actions(commit: bytes) -> Iterator[Action]:
    for line in commit.splitlines():
        action = json.loads(line)
        if action:
            yield from action.items()


def _expired_before_ms(configuration: Mapping[str, str]) -> int:
    """When a file was removed that no reader needs any more, in milliseconds since 1970."""
    if any(name.startswith(_PROPERTIES_OF_CHECKPOINTS) for name in configuration):
        raise LeftToDelta
    duration = _DURATION.fullmatch(configuration.get(_RETENTION, _RETENTION_BY_DEFAULT).strip())
    if duration is None:
        raise LeftToDelta
    return round((time.time() - int(duration[1]) * _HOURS[duration[2].lower()] * 3600) * 1000)


def reconciled(previous: pa.Table | None, commits: Iterable[Iterable[Action]], expired_before_ms: int) -> pa.Table:
    """The actions of the previous checkpoint and of the commits behind it, in order, that still hold: SCHEMA's rows.

    Removed files are kept until they expire, since older versions of the table may still be read. Raises LeftToDelta.
    """
    newest: dict[tuple[str, str], Action] = {}
    for commit in commits:
        for kind, fields in commit:
            if kind != "commitInfo":
                newest[_identity(kind, fields)] = (kind, fields)
    rows = [
        {kind: _as_written(kind, fields)}
        for kind, fields in newest.values()
        if kind != "remove" or fields.get("deletionTimestamp", 0) > expired_before_ms
    ]
    replaced = pa.array([f"{kind}\n{name}" for kind, name in newest], pa.string())
    kept = [] if previous is None else [_kept(_of_schema(previous), replaced, expired_before_ms)]
    table = pa.concat_tables([*kept, pa.Table.from_pylist(rows, SCHEMA)])
    features: set[str] = set()
    for protocol in table["protocol"].filter(pc.is_valid(table["protocol"])).to_pylist():
        features.update(protocol["readerFeatures"] or (), protocol["writerFeatures"] or ())
    if not features <= FEATURES:
        raise LeftToDelta
    return table


def _identity(kind: str, fields: Mapping[str, Any]) -> tuple[str, str]:
    """What an action replaces: of two actions with one identity the newer one holds. Raises LeftToDelta."""
    if kind not in SCHEMA.names or not set(fields) <= {field.name for field in SCHEMA.field(kind).type}:
        raise LeftToDelta
    if kind == "txn":
        return kind, fields["appId"]
    if kind in ("add", "remove"):
        return "file", f"{fields['path']}\n{_vector_id(fields.get('deletionVector'))}"
    return kind, ""


def _vector_id(vector: Mapping[str, Any] | None) -> str:
    """Delta protocol, "Deletion Vector Descriptor Schema", uniqueId; nothing for no vector."""
    if vector is None:
        return ""
    offset = vector.get("offset")
    return f"{vector['storageType']}{vector['pathOrInlineDv']}" + ("" if offset is None else f"@{offset}")


def _as_written(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as Arrow takes them: maps as pairs. In a checkpoint no file's action is a change of data."""
    taken = {name: list(v.items()) if name in _MAPS and v is not None else v for name, v in fields.items()}
    if kind == "metaData":
        described = fields["format"]
        taken["format"] = {"provider": described["provider"], "options": list(described.get("options", {}).items())}
    if kind in ("add", "remove"):
        taken["dataChange"] = False
    return taken


_MAPS: Final = frozenset({"partitionValues", "tags", "configuration"})


def _of_schema(checkpoint: pa.Table) -> pa.Table:
    """A checkpoint that Delta may have written, with SCHEMA's columns. Raises LeftToDelta if values would be lost."""
    columns = []
    for field in SCHEMA:
        if field.name in checkpoint.column_names:
            columns.append(_of_fields(checkpoint[field.name].combine_chunks(), field.type))
        else:
            columns.append(pa.nulls(checkpoint.num_rows, field.type))
    for name in set(checkpoint.column_names) - set(SCHEMA.names):
        _require_nothing(checkpoint[name])
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _of_fields(actions: pa.StructArray, wanted: pa.StructType) -> pa.StructArray:
    names = {field.name for field in actions.type}
    for name in names - _DERIVED - {field.name for field in wanted}:
        _require_nothing(pc.struct_field(actions, name))
    if "stats_parsed" in names:  # a table may keep its statistics there alone
        parsed, texts = pc.struct_field(actions, "stats_parsed"), pc.struct_field(actions, "stats")
        if pc.any(pc.and_(pc.is_valid(parsed), pc.is_null(texts))).as_py():
            raise LeftToDelta
    children = [
        pc.struct_field(actions, field.name).cast(field.type)
        if field.name in names
        else pa.nulls(len(actions), field.type)
        for field in wanted
    ]
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=pc.is_null(actions))


def _require_nothing(values: pa.Array | pa.ChunkedArray) -> None:
    if values.null_count < len(values):
        raise LeftToDelta


def _kept(previous: pa.Table, replaced: pa.Array, expired_before_ms: int) -> pa.Table:
    """The rows that no newer action replaces, without removed files that have expired."""
    gone = pc.is_in(_identities(previous), value_set=replaced)
    removed_at = pc.struct_field(previous["remove"], "deletionTimestamp")
    is_removed = pc.is_valid(previous["remove"])
    has_expired = pc.less_equal(pc.fill_null(removed_at, 0), expired_before_ms)
    return previous.filter(pc.invert(pc.or_(gone, pc.and_(is_removed, has_expired))))


def _identities(table: pa.Table) -> pa.ChunkedArray:
    """The rows' identities, as texts of the two parts of `_identity`."""
    application = pc.struct_field(table["txn"], "appId")
    named = [pc.binary_join_element_wise("txn", application, "\n")]
    for kind in ("add", "remove"):
        vector = pc.struct_field(table[kind], "deletionVector")
        offset = pc.struct_field(vector, "offset").cast(pa.string())
        parts = [pc.struct_field(vector, "storageType"), pc.struct_field(vector, "pathOrInlineDv")]
        without_offset = pc.binary_join_element_wise(*parts, "")
        with_offset = pc.binary_join_element_wise(without_offset, offset, "@")
        vector_id = pc.fill_null(pc.coalesce(with_offset, without_offset), "")
        named.append(pc.binary_join_element_wise("file", pc.struct_field(table[kind], "path"), vector_id, "\n"))
    for kind in ("metaData", "protocol"):
        named.append(pc.if_else(pc.is_valid(table[kind]), f"{kind}\n", None))
    return pc.coalesce(*named)


def _check(table: pa.Table, committed: DeltaSnapshot, bytes_of_files: int) -> None:
    """Raises LeftToDelta unless the files are as many, and as large, as the version's checksum file says."""
    added = table["add"].filter(pc.is_valid(table["add"]))
    size = pc.sum(pc.struct_field(added, "size")).as_py() or 0
    if (len(added), size) != (committed.files, bytes_of_files):
        log.warning("The log was read to %d files of %d bytes, not as its checksum file says", len(added), size)
        raise LeftToDelta
