"""Holds what the driver reads to apply chunks: the next batches, and the chunk rows whose keys changes have too."""

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
    """What is applied next, and as `evidence` older batches. `scratch` is a folder of the plan, relative to the lake,
    for what is left of the chunks."""

    batches: Sequence[PlannedBatch]
    evidence: Sequence[PlannedBatch]
    generation: int
    scratch: str


@dataclass(frozen=True, slots=True)
class TouchedRows:
    """Rows of chunks whose keys changes have too, or that are to be compared with current for another reason, by their
    chunks; `target` finds the rows of current that have these keys."""

    table: StagedTable
    coming: NextBatches
    target: TargetRows
    rows: Sequence[tuple[Claim, pa.Table]]


def moment_of(claim: Claim) -> datetime:
    """When its high watermark was committed. Raises Declined where that is not said in full."""
    moment = datetime.fromisoformat(claim.watermark_at)
    if moment.tzinfo is None:
        raise Declined("a watermark's moment has no zone")
    return moment
