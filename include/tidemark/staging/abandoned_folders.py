"""Selects the folders of ended attempts that can be deleted, because no batch was registered from them (R4). Pure.

A folder `<start LSN>-<attempt>` is garbage only when its attempt's lease has ended and nothing in it is needed any
more: either the source can still send what it holds (its start is at or above the slot's confirmed position), or a
registered batch covers its start. Everything else stays, because a restored ledger may have to register it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tidemark.lsn import Lsn


class Attempt(NamedTuple):
    """A batch folder by its name."""

    folder: str
    start: Lsn
    attempt: str


def read_name(folder: str) -> Attempt | None:
    """The parts of a batch folder's name; None for other names, which are never deleted."""
    start, dash, attempt = folder.partition("-")
    if not dash or not attempt or len(start) != 16:
        return None
    try:
        return Attempt(folder, Lsn(int(start, 16)), attempt)
    except ValueError:
        return None


def abandoned(
    folders: Iterable[str],
    *,
    registered: Iterable[tuple[Lsn, Lsn, str]],
    has_ended: Callable[[str], bool],
    confirmed: Lsn,
) -> list[str]:
    """The names of the folders that can be deleted. `registered` are (start, end, attempt) of the generation's
    batches."""
    batches = sorted(registered)
    own = {(start, attempt) for start, _, attempt in batches}
    garbage = []
    for folder in folders:
        name = read_name(folder)
        if name is None or (name.start, name.attempt) in own or not has_ended(name.attempt):
            continue
        covered = any(start <= name.start < end for start, end, _ in batches)
        if covered or name.start >= confirmed:
            garbage.append(folder)
    return garbage
