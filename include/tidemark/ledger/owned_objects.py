"""Records the slots and publications that a pipeline created, or that a person adopted for it (R9).

    nothing there ──note──► noted ──made at the source──► its own
                              └──the source refused──forget──► nothing there
    somebody's    ──adopted by hand──► its own

PostgreSQL does not record who created a slot, and reading a slot takes its changes from its owner. So a slot counts as
the pipeline's only if it is recorded here, or if a generation was staged from it. The row is written before the object
is created: after a crash in between, the object still counts as the pipeline's.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import SLOT, Lease

Kind = Literal["slot", "publication"]
Origin = Literal["made", "adopted"]


@dataclass(frozen=True, slots=True)
class OwnedObject:
    """`database` is that of the source, as its server calls it."""

    kind: Kind
    system_identifier: str
    database: str
    name: str


def is_own(ledger: Ledger, owned: OwnedObject) -> bool:
    """Whether the pipeline made it or was given it; a slot also if a generation was staged from it."""
    return ledger.holds(
        """
        SELECT EXISTS (SELECT 1 FROM tidemark.belongings
                        WHERE pipeline = %(pipeline)s AND kind = %(kind)s AND system_identifier = %(system_identifier)s
                          AND database = %(database)s AND name = %(name)s)
            OR EXISTS (SELECT 1 FROM tidemark.generations
                        WHERE pipeline = %(pipeline)s AND system_identifier = %(system_identifier)s
                          AND %(kind)s = 'slot' AND slot = %(name)s)
        """,
        asdict(owned),
    )


def was_made(ledger: Ledger, owned: OwnedObject) -> bool:
    """Whether preflight made it, or was about to."""
    return ledger.holds(
        """
        SELECT 1 FROM tidemark.belongings
         WHERE pipeline = %(pipeline)s AND kind = %(kind)s AND system_identifier = %(system_identifier)s
           AND database = %(database)s AND name = %(name)s AND origin = 'made'
        """,
        asdict(owned),
    )


def note(ledger: Ledger, lease: Lease, owned: OwnedObject, origin: Origin) -> bool:
    """Write it down, before it is made or taken. False if it was there already. Needs the lease `slot`."""
    with ledger.transaction():
        lease.check(ledger, SLOT)
        ledger.insert("pipelines", or_nothing=True)
        return ledger.insert("belongings", or_nothing=True, origin=origin, **asdict(owned))


def forget(ledger: Ledger, lease: Lease, owned: OwnedObject) -> None:
    """It was not made after all. Needs the lease `slot`."""
    with ledger.transaction():
        lease.check(ledger, SLOT)
        ledger.execute(
            """
            DELETE FROM tidemark.belongings
             WHERE pipeline = %(pipeline)s AND kind = %(kind)s AND system_identifier = %(system_identifier)s
               AND database = %(database)s AND name = %(name)s
            """,
            asdict(owned),
        )
