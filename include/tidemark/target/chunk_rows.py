"""What the driver needs of chunks to work out by itself what comes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from pyspark.sql import SparkSession

from tidemark.formats.manifest import Claim
from tidemark.formats.plan import PlannedBatch
from tidemark.schema.table import TableSchema
from tidemark.target.target_rows import TargetRows, TooMuch


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


def moment_of(claim: Claim) -> datetime:
    """When its high watermark was committed. Raises TooMuch where that is not said in full."""
    moment = datetime.fromisoformat(claim.watermark_at)
    if moment.tzinfo is None:
        raise TooMuch
    return moment
