"""Lists a pipeline's staging from a position on: its generations and the folders of their batches.

A drain needs the generations, the batches after the ledger's last one, and the abandoned attempts (R4). All are at or
above one position, or in newer generations, so one listing suffices. It is made under the lease `slot`; files that a
replaced attempt writes later are in the next drain's listing.

Object stores sort numbers as text, so g10 comes before g2: a listing from g2 on has the newer generations only up to
g9. If g9 exists, or a number has two digits, the generations are listed separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.formats import layout
from tidemark.lsn import Lsn
from tidemark.storage.store import Store

_LAST_OF_ONE_DIGIT: Final = 9


@dataclass(frozen=True, slots=True)
class StagedFolders:
    """One listing: `names` of folders at or above `above` in the generation `number`, and all names in newer
    generations."""

    store: Store
    pipeline: str
    number: int
    above: Lsn
    numbers: Sequence[int]
    names: Mapping[int, Sequence[str]]

    def of(self, generation: int, at_or_above: Lsn) -> list[str]:
        """The names in a generation's folder from a position on, sorted; read again if the listing does not cover
        them."""
        is_below = generation == self.number and at_or_above < self.above
        if is_below or generation not in self.names:
            return self.store.list(layout.generation_folder(self.pipeline, generation), at_or_above.hex16)
        return [name for name in self.names[generation] if name >= at_or_above.hex16]


def read(store: Store, pipeline: str, number: int | None, above: Lsn) -> StagedFolders:
    """List by one request of an object store. For a pipeline without a generation only the generations' numbers are
    listed."""
    root = layout.staging_root(pipeline)
    if number is None or number > _LAST_OF_ONE_DIGIT:
        return StagedFolders(store, pipeline, number or 0, above, generations(store, pipeline), {})
    listed = store.list_from(root, f"g{number}", above.hex16)
    names = {int(folder[1:]): below for folder, below in listed.items() if _is_generation(folder)}
    numbers = {number, *names}
    if _LAST_OF_ONE_DIGIT in numbers:
        numbers |= {one for one in generations(store, pipeline) if one > number}
    newer = {n: below for n, below in names.items() if n == number or number < n <= _LAST_OF_ONE_DIGIT}
    return StagedFolders(store, pipeline, number, above, sorted(numbers), {number: [], **newer})


def generations(store: Store, pipeline: str) -> list[int]:
    """The numbers of generations with a folder in staging, ascending."""
    return sorted(int(name[1:]) for name in store.list(layout.staging_root(pipeline)) if _is_generation(name))


def _is_generation(name: str) -> bool:
    return name.startswith("g") and name[1:].isdigit()
