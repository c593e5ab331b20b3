"""Collects the facts that decide how a table is merged: plan, schemas, pinned tables, settings -> `MergeFacts`.

It reads no data file: the manifests already count the changes that lack a value or move a key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from pyspark.sql import SparkSession

from tidemark.formats.columns import staged_schema
from tidemark.formats.manifest import Claim
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.names import CHANGE_COLUMNS, MARK_COLUMNS, ROW_COLUMNS, ROW_HOLES
from tidemark.schema.table import TableSchema
from tidemark.target.delta import data_files, internals
from tidemark.target.delta.delta_tables import PinnedPair, PinnedTable
from tidemark.target.driver.arrow_columns import is_comparable
from tidemark.target.merge_choice import ChangeFacts, ChunkFacts, MergeFacts, Settings, TableFacts

log = logging.getLogger(__name__)

DRIVER_ROWS: Final = "spark.tidemark.driverFoldRows"  # 0: Spark folds everything
FOLDS_CHUNKS: Final = "spark.tidemark.driverFoldsChunks"  # false: Spark folds the rows of chunks
ADDS_FILES: Final = "spark.tidemark.chunksAsTheyAre"  # false: Spark encodes all rows of chunks again
PROVES: Final = "spark.tidemark.driverProvesEqual"  # false: Spark compares all rows


def gather(
    session: SparkSession,
    schemas: Sequence[TableSchema],
    batches: Sequence[PlannedBatch],
    evidence: Sequence[PlannedBatch],
    tables: PinnedPair,
) -> MergeFacts:
    """Collect the facts of a merge of the next `batches`, with older batches as `evidence`.

    `schemas` are the schema versions of the files; the last one is the version of both Delta tables. A Delta table that
    does not exist yet has no feature that only Spark could write.
    """
    merged = [batch.of("fill", "repair") for batch in batches]
    compared = [batch.of("verify") for batch in batches]
    return MergeFacts(
        table=_table_facts(schemas[-1], tables),
        changes=change_facts(schemas, batches),
        changes_read=change_facts(schemas, [*batches, *evidence]),
        chunks=_chunk_facts(schemas, merged),
        compared=_chunk_facts(schemas, compared),
        settings=_settings(session, has_chunks=any(batch.claims or batch.sweeps for batch in batches)),
        misfit=internals.misfit(session) or "",
    )


def _table_facts(schema: TableSchema, tables: PinnedPair) -> TableFacts:
    history, current = tables.history, tables.current
    names = {column.name for column in schema.columns}
    of_history = _names(history)
    of_current = set() if current is None else _names(current)
    is_plain = current is None or _is_plain(current)
    return TableFacts(
        key=_key(schema),
        has_current=current is not None,
        has_dropped_columns=bool(schema.dropped),
        history_as_expected=of_history == {*CHANGE_COLUMNS, *names, *MARK_COLUMNS},
        current_as_expected=of_current == {*names, *ROW_COLUMNS, ROW_HOLES},
        current_has_all_columns=names - {*schema.dropped} <= of_current,
        writer_needed=not is_plain or not _is_plain(history),
        current_writer_needed=not is_plain,
    )


def _key(schema: TableSchema) -> Literal["none", "comparable", "floating"]:
    shape = staged_schema(schema)
    if not schema.key:
        return "none"
    return "comparable" if all(is_comparable(shape.field(name).type) for name in schema.key) else "floating"


def _names(table: PinnedTable) -> set[str]:
    return {field.name for field in table.schema().fields}


def _is_plain(table: PinnedTable) -> bool:
    return not table.exists or data_files.is_plain(table)


def change_facts(schemas: Sequence[TableSchema], batches: Sequence[PlannedBatch]) -> ChangeFacts:
    files = [file for batch in batches for file in batch.files]
    versions = {file.schema_version for file in files}
    return ChangeFacts(
        rows=sum(file.rows for file in files),
        bytes=sum(file.bytes for file in files),
        unsent=sum(batch.unchanged for batch in batches),
        moved=sum(batch.moved for batch in batches),
        truncates=sum(batch.truncates for batch in batches),
        in_shape=all(schema.is_read_as(schemas[-1]) for schema in schemas if schema.version in versions),
        keys_in_shape=keys_in_shape(schemas, batches),
    )


def _chunk_facts(schemas: Sequence[TableSchema], batches: Sequence[PlannedBatch]) -> ChunkFacts:
    claims = [claim for batch in batches for claim in batch.claims]
    return ChunkFacts(
        claims=len(claims),
        sweeps=sum(len(batch.sweeps) for batch in batches),
        repairs=any(claim.purpose == "repair" for claim in claims),
        in_shape=chunks_in_shape(schemas, claims),
        keys_in_shape=keys_in_shape(schemas, batches),
    )


def chunks_in_shape(schemas: Sequence[TableSchema], claims: Sequence[Claim]) -> bool:
    """Whether each file of the chunks has every column of the table, under the table's name for it.

    A chunk of some columns only fails this. So does a file from before two columns exchanged their names.
    """
    schema = schemas[-1]
    if any(claim.columns is not None for claim in claims):
        return False
    wanted = {c.name: c.target for c in schema.columns if c.name not in schema.dropped}
    versions = {file.schema_version for claim in claims for file in claim.files}
    schemas_read = [s for s in schemas if s.version in versions]
    if len({s.version for s in schemas_read}) < len(versions):
        return False
    return all(s.is_read_as(schema) and {c.name: c.target for c in s.columns} == wanted for s in schemas_read)


def keys_in_shape(schemas: Sequence[TableSchema], batches: Iterable[PlannedBatch]) -> bool:
    """Whether all files of the batches, of changes and of chunks, call the key's columns as the table calls them.

    If columns exchanged their names, a key that is read by name would be the key of another row.
    """
    schema = schemas[-1]
    versions: set[int] = set()
    for batch in batches:
        versions.update(file.schema_version for file in batch.files)
        versions.update(file.schema_version for claim in batch.claims for file in claim.files)
    key_columns = [column for column in schema.columns if column.name in schema.key]
    pairs = [
        (schema.column_in(s, column), column.name) for s in schemas if s.version in versions for column in key_columns
    ]
    return all(own is not None and own.name == name for own, name in pairs)


def _settings(session: SparkSession, *, has_chunks: bool) -> Settings:
    rows = _rows(session)
    if not has_chunks:
        return Settings(rows)
    allowed = (str(session.conf.get(name, "true")).lower() != "false" for name in (FOLDS_CHUNKS, ADDS_FILES, PROVES))
    return Settings(rows, *allowed)


def _rows(session: SparkSession) -> int | None:
    setting = session.conf.get(DRIVER_ROWS, None)
    try:
        return None if setting is None else int(setting)
    except ValueError:
        log.warning("%s is not a number, and is left out", DRIVER_ROWS)
        return None
