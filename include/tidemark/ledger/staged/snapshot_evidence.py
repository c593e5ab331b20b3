"""Collects which batches chunks and sweeps need as evidence: those with changes that their snapshots may lack (R7).

A plan contains such batches as evidence (`batches.evidence`), and staging keeps them until then (`retirement`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemark.formats.snapshot import Snapshot
from tidemark.lsn import Lsn


@dataclass(slots=True)
class NeededEvidence:
    """Matches batches with a transaction at or above `xmin`, with a change above `point`, or with chunks of `swept`."""

    xmin: int | None = None
    point: Lsn | None = None
    swept: set[str] = field(default_factory=set)

    def add_snapshot(self, snapshot: str) -> None:
        xmin = Snapshot.parse(snapshot).xmin
        self.xmin = xmin if self.xmin is None else min(self.xmin, xmin)

    def add_chunk(self, snapshot: str, consistent_point: Lsn | None) -> None:
        """Add a chunk. Under an exported snapshot it contains every change below its consistent point."""
        if consistent_point is None:
            self.add_snapshot(snapshot)
        else:
            self.add_point(consistent_point)

    def add_point(self, point: Lsn) -> None:
        self.point = point if self.point is None else min(self.point, point)

    def includes(self, max_xid: int | None, end: Lsn) -> bool:
        """Whether a batch with this end and highest transaction `max_xid` may have one of the needed changes."""
        if max_xid is None:
            return False
        return (self.xmin is not None and max_xid >= self.xmin) or (self.point is not None and end > self.point)
