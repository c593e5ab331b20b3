"""Orders complete manifests into the one chain of batches that continues a position (R4). Pure.

Two drains can write two complete manifests with the same start, of which at most one is registered. Both contain the
same transactions in their common range, so both are correct, unless tables were already merged from one: their
positions are ends of *its* batches. So the manifest whose chain has more batches in plans is preferred, then the one
whose chain is longer. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from posixpath import dirname

from tidemark.formats.manifest import BatchManifest, Claim, SourceIdentity
from tidemark.lsn import Lsn


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """The facts of the complete manifest at `path` that a chain needs. A manifest of hundreds of tables takes
    megabytes of memory, and a lost ledger has thousands of manifests."""

    path: str
    start_lsn: Lsn
    end_lsn: Lsn
    attempt: str
    source: SourceIdentity
    claims: frozenset[Claim]

    @classmethod
    def of(cls, path: str, manifest: BatchManifest) -> StagedBatch:
        claims = frozenset(claim for table in manifest.tables for claim in table.claims)
        return cls(path, manifest.start_lsn, manifest.end_lsn, manifest.attempt, manifest.source, claims)

    @property
    def folder(self) -> str:
        return dirname(self.path)


def chain_from(
    start: Lsn | None, batches: Iterable[StagedBatch], named: Callable[[StagedBatch], bool]
) -> list[StagedBatch]:
    """The batches that continue `start` without a gap or an overlap. `named` returns whether a plan names a batch.
    Without `start` the chain begins at the lowest start from which it reaches furthest."""
    best: dict[Lsn, tuple[tuple[int, Lsn, Lsn], StagedBatch]] = {}
    for batch in sorted(batches, key=lambda b: (b.start_lsn, b.attempt), reverse=True):
        onward = best.get(batch.end_lsn)
        named_onward, reach, _ = onward[0] if onward is not None else (0, batch.end_lsn, batch.end_lsn)
        rank = (named(batch) + named_onward, reach, batch.end_lsn)
        rival = best.get(batch.start_lsn)
        if rival is None or rank > rival[0]:
            best[batch.start_lsn] = (rank, batch)
    if start is None:
        start = max(best, key=lambda lsn: (best[lsn][0][1], -lsn), default=None)
    chain = []
    while start is not None and start in best:
        chain.append(best[start][1])
        start = chain[-1].end_lsn
    return chain
