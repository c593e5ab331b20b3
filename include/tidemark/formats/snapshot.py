"""Parses `pg_current_snapshot()` -> `Snapshot`, which decides whether a transaction was visible (R7). Pure.

    xmin:xmax:in-progress,…      every transaction below xmin had ended; none at or above xmax was seen; of those in
                                 between, the listed ones were in progress

Both arms matter: a transaction whose commit record is in the WAL, and which is not visible yet, stands in the list or
at or above xmax. Ids are 64 bits wide, as PostgreSQL's xid8; compared within one generation only. Source: PostgreSQL
documentation, 9.28.5 "Transaction ID and Snapshot Information Functions". Pure.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`in_progress` are top-level transaction ids in `[xmin, xmax)`, ascending."""

    xmin: int
    xmax: int
    in_progress: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Raises ValueError on anything that `pg_current_snapshot()` does not return."""
        fields = text.split(":")
        if len(fields) != 3:
            raise ValueError("not a snapshot: it has the form xmin:xmax:in-progress")
        xmin, xmax = int(fields[0]), int(fields[1])
        in_progress = tuple(int(xid) for xid in fields[2].split(",")) if fields[2] else ()
        if not 0 < xmin <= xmax or any(not xmin <= xid < xmax for xid in in_progress):
            raise ValueError("not a snapshot: its transaction ids are out of order")
        return cls(xmin, xmax, in_progress)

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.in_progress))}"

    def sees(self, xid: int) -> bool:
        """Whether the effects of a committed transaction were visible."""
        return xid < self.xmin or (xid < self.xmax and xid not in self.in_progress)
