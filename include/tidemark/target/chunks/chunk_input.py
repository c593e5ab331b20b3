"""Defines the records that the steps of applying chunks in the driver pass on: `NextBatches` and `TouchedRows`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from tidemark.formats.manifest import Claim
from tidemark.formats.merge_plan import PlannedBatch
from tidemark.target.driver.change_reader import StagedTable
from tidemark.target.driver.target_rows import TargetRows
from tidemark.target.merge_choice import Declined


@dataclass(frozen=True, slots=True)
class NextBatches:
    """The next batches to apply, and older batches as `evidence`.

    `scratch` is a folder of the plan, relative to the lake. Chunk rows that cannot be added with their files are
    written there for Spark.
    """

    batches: Sequence[PlannedBatch]
    evidence: Sequence[PlannedBatch]
    generation: int
    scratch: str


@dataclass(frozen=True, slots=True)
class TouchedRows:
    """Chunk rows whose keys occur in changes too, or that must be compared with current for another reason.

    `rows` has them by chunk. `target` finds the rows of current that have these keys.
    """

    table: StagedTable
    next_batches: NextBatches
    target: TargetRows
    rows: Sequence[tuple[Claim, pa.Table]]


def watermark_time(claim: Claim) -> datetime:
    """The commit time of the chunk's high watermark. Raises Declined if the time has no time zone."""
    moment = datetime.fromisoformat(claim.watermark_at)
    if moment.tzinfo is None:
        raise Declined("a watermark's time has no time zone")
    return moment
