"""What the driver needs of chunks to work out by itself what comes of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from pyspark.sql import SparkSession

from tidemark.formats.manifest import Claim
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.schema.table import TableSchema
from tidemark.target.driver.target_rows import TargetRows, TooMuch


@dataclass(frozen=True, slots=True)
class NextBatches:
    """What is applied next, and as `evidence` older batches. `scratch` is a folder of the plan, relative to the lake,
    for what is left of the chunks."""

    batches: Sequence[PlannedBatch]
    evidence: Sequence[PlannedBatch]
    generation: int
    scratch: str


@dataclass(frozen=True, slots=True)
class TouchedRows:
    """Rows of chunks whose keys changes have too, or that need a look at current for another reason; by the chunks that
    they are of. `there` has looked for the rows of current that have these keys."""

    session: SparkSession
    lake: str
    schema: TableSchema
    coming: NextBatches
    there: TargetRows
    rows: Sequence[tuple[Claim, pa.Table]]


def are_read_as_they_are(schemas: Sequence[TableSchema], claims: Sequence[Claim]) -> bool:
    """Whether the chunks' files have every column of the table, and each means what the table's of that name does: none
    is of some columns alone, and none is from before two columns exchanged their names."""
    schema = schemas[-1]
    if any(claim.columns is not None for claim in claims):
        return False
    wanted = {c.name: c.target for c in schema.columns if c.name not in schema.dropped}
    versions = {file.schema_version for claim in claims for file in claim.files}
    read = [s for s in schemas if s.version in versions]
    if len({s.version for s in read}) < len(versions):
        return False
    return all(s.is_read_as(schema) and {c.name: c.target for c in s.columns} == wanted for s in read)


def have_key_under_its_names(schemas: Sequence[TableSchema], batches: Iterable[PlannedBatch]) -> bool:
    """Whether the key's columns are called in all files of the batches, changes and chunks, what the table calls them:
    of columns that exchanged their names, a key read by them would be another row's."""
    schema = schemas[-1]
    versions: set[int] = set()
    for batch in batches:
        versions.update(file.schema_version for file in batch.files)
        versions.update(file.schema_version for claim in batch.claims for file in claim.files)
    of_key = [column for column in schema.columns if column.name in schema.key]
    there = [schema.column_in(s, column) for s in schemas if s.version in versions for column in of_key]
    names = [column.name for s in schemas if s.version in versions for column in of_key]
    return all(own is not None and own.name == name for own, name in zip(there, names, strict=True))


def moment_of(claim: Claim) -> datetime:
    """When its high watermark was committed. Raises TooMuch where that is not said in full."""
    moment = datetime.fromisoformat(claim.watermark_at)
    if moment.tzinfo is None:
        raise TooMuch
    return moment
