"""Defines the records that the steps of applying chunks in the driver pass on: `NextBatches` and `TouchedRows`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from tidemark.formats.manifest import Claim, Sweep
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

    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(claim for batch in self.batches for claim in batch.claims)

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        return tuple(sweep for batch in self.batches for sweep in batch.sweeps)

    def claims_of(self, sweep: Sweep) -> list[Claim]:
        """All claims of the sweep's backfill. There may be more than chunks, see `may_share_keys`."""
        batches = (*self.evidence, *self.batches)
        return [claim for batch in batches for claim in batch.claims if claim.backfill == sweep.backfill]


@dataclass(frozen=True, slots=True)
class TouchedRows:
    """Chunk rows whose keys occur in changes too, or that must be compared with current for another reason.

    `rows` has them by chunk. `target` finds the rows of current that have these keys.
    """

    table: StagedTable
    next_batches: NextBatches
    target: TargetRows
    rows: Sequence[tuple[Claim, pa.Table]]


def may_share_keys(claims: Iterable[Claim], sweeps: Iterable[Sweep] = ()) -> bool:
    """Whether two chunks may have a key in common: chunks of two backfills, or of two attempts at one range.

    After a ledger was restored from an older copy, chunks are read again although their first attempts are claimed.
    """
    attempts = {(claim.backfill, claim.key_range, claim.attempt) for claim in claims}
    backfills = {backfill for backfill, _, _ in attempts} | {sweep.backfill for sweep in sweeps}
    return len(backfills) > 1 or len(attempts) > len({key_range for _, key_range, _ in attempts})


def watermark_time(claim: Claim) -> datetime:
    """The commit time of the chunk's high watermark. Raises Declined if the time has no time zone."""
    moment = datetime.fromisoformat(claim.watermark_at)
    if moment.tzinfo is None:
        raise Declined("a watermark's time has no time zone")
    return moment
