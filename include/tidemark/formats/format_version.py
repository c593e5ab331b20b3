"""The `format` that every JSON file in the lake begins with -> whether this version may read the file. Pure.

An older reader must not take a newer file for a broken one: a manifest that "is none" would be a hole in the chain of
batches, a plan that "is none" garbage. Nor may it pass over a field that it does not know: that of a chunk says whether
its rows are merged or only compared. So whoever changes what a file holds raises its FORMAT, and goes on reading those
from OLDEST on, which lakes have. A newer format is an error of its own, which nobody who expects half-written files
catches; an older one that is read no more is ValueError, as any text that is no such file.

What has no number of its own stands in a file that has: staged rows and chunks in their manifest, a chunk that is not
claimed yet in the ledger, which has the number of its last migration.
"""

from __future__ import annotations

from tidemark.errors import FormatIsNewer


def require(kind: str, written: object, *, oldest: int, newest: int) -> None:
    """Raise FormatIsNewer if a `kind` ("batch manifest") of format `written` is beyond what this version reads,
    ValueError if it cannot be read for any other reason."""
    if not isinstance(written, int):
        raise ValueError(f"{kind} without a format")
    if written > newest:
        raise FormatIsNewer(kind=kind, written=written, reads=newest)
    if written < oldest:
        raise ValueError(f"{kind} of format {written}; this version reads {oldest} to {newest}")
