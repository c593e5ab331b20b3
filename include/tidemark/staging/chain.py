"""Complete manifests -> the one chain of batches that goes on from a position (R4).

Two drains can leave two complete manifests with one start: one was registered, or none was. Both hold the same
transactions as far as both reach, so either is right, unless tables were already merged from one of them: their
positions are ends of *its* batches. So the one whose chain holds more batches that a plan names comes first, then the
one whose chain reaches further. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidemark.formats.manifest import BatchManifest
from tidemark.lsn import Lsn


def chain_from(
    start: Lsn | None, manifests: Iterable[BatchManifest], named: Callable[[BatchManifest], bool]
) -> list[BatchManifest]:
    """The batches that go on from `start` without a hole or an overlap; `named`: whether a plan names the batch.

    Without `start`, from the lowest start that reaches as far as any does.
    """
    best: dict[Lsn, tuple[tuple[int, Lsn, Lsn], BatchManifest]] = {}
    for manifest in sorted(manifests, key=lambda m: (m.start_lsn, m.attempt), reverse=True):
        onward = best.get(manifest.end_lsn)
        named_onward, reach, _ = onward[0] if onward is not None else (0, manifest.end_lsn, manifest.end_lsn)
        rank = (named(manifest) + named_onward, reach, manifest.end_lsn)
        rival = best.get(manifest.start_lsn)
        if rival is None or rank > rival[0]:
            best[manifest.start_lsn] = (rank, manifest)
    if start is None:
        start = max(best, key=lambda lsn: (best[lsn][0][1], -lsn), default=None)
    chain = []
    while start is not None and start in best:
        chain.append(best[start][1])
        start = chain[-1].end_lsn
    return chain
