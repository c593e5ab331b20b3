"""Selects the batches that chunks and sweeps still need as evidence: those that their snapshots may not include (R7).

A plan takes such batches as evidence (`batches.evidence`), and staging keeps them until then (`retirement`): one
question, asked of the claims and sweeps that a plan has, and of those that one may yet have.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemark.formats.snapshot import Snapshot
from tidemark.lsn import Lsn


@dataclass(slots=True)
class Unseen:
    """Batches with a transaction at or above `xmin`, with a change above `point`, or with chunks of `swept`."""

    xmin: int | None = None
    point: Lsn | None = None
    swept: set[str] = field(default_factory=set)

    def by_snapshot(self, snapshot: str) -> None:
        xmin = Snapshot.parse(snapshot).xmin
        self.xmin = xmin if self.xmin is None else min(self.xmin, xmin)

    def by_point(self, point: Lsn) -> None:
        self.point = point if self.point is None else min(self.point, point)

    def may_have(self, max_xid: int | None, end: Lsn) -> bool:
        """Whether a batch that ends there, and whose highest transaction is `max_xid`, has a change among them."""
        if max_xid is None:
            return False
        return (self.xmin is not None and max_xid >= self.xmin) or (self.point is not None and end > self.point)
