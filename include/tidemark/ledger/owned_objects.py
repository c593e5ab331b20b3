"""Records the slots and publications that a pipeline created, or that a person adopted for it (R9).

    nothing there ──note──► noted ──made at the source──► its own
                              └──the source refused──forget──► nothing there
    somebody's    ──adopted by hand──► its own

PostgreSQL does not record who created a slot, and reading a slot takes its changes from its owner. So a slot counts as
the pipeline's only if it is recorded here, or if a generation was staged from it. The row is written before the object
is created: after a crash in between, the object still counts as the pipeline's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

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
    row = ledger.execute(
        """
        SELECT EXISTS (SELECT 1 FROM tidemark.belongings
                        WHERE pipeline = %(pipeline)s AND kind = %(kind)s AND system_identifier = %(system)s
                          AND (database, name) IN ((%(database)s, %(name)s), ('', '')))
            OR EXISTS (SELECT 1 FROM tidemark.generations
                        WHERE pipeline = %(pipeline)s AND system_identifier = %(system)s
                          AND %(kind)s = 'slot' AND slot = %(name)s)
        """,
        _values(ledger.pipeline, owned),
    ).fetchone()
    return row is not None and bool(row[0])


def was_made(ledger: Ledger, owned: OwnedObject) -> bool:
    """Whether preflight made it, or was about to."""
    row = ledger.execute(
        """
        SELECT 1 FROM tidemark.belongings
         WHERE pipeline = %(pipeline)s AND kind = %(kind)s AND system_identifier = %(system)s
           AND database = %(database)s AND name = %(name)s AND origin = 'made'
        """,
        _values(ledger.pipeline, owned),
    ).fetchone()
    return row is not None


def note(ledger: Ledger, lease: Lease, owned: OwnedObject, origin: Origin) -> bool:
    """Write it down, before it is made or taken. False if it was there already. Needs the lease `slot`."""
    with ledger.transaction():
        lease.check(ledger, SLOT)
        ledger.insert("pipelines", or_nothing=True)
        # The publication of a pipeline that is older than the notes has its name from here on.
        ledger.execute(
            "DELETE FROM tidemark.belongings WHERE pipeline = %s AND kind = %s AND name = ''",
            (lease.pipeline, owned.kind),
        )
        noted = ledger.execute(
            """
            INSERT INTO tidemark.belongings (pipeline, kind, system_identifier, database, name, origin)
            VALUES (%(pipeline)s, %(kind)s, %(system)s, %(database)s, %(name)s, %(origin)s) ON CONFLICT DO NOTHING
            """,
            {**_values(lease.pipeline, owned), "origin": origin},
        )
    return noted.rowcount == 1


def forget(ledger: Ledger, lease: Lease, owned: OwnedObject) -> None:
    """It was not made after all. Needs the lease `slot`."""
    with ledger.transaction():
        lease.check(ledger, SLOT)
        ledger.execute(
            """
            DELETE FROM tidemark.belongings
             WHERE pipeline = %(pipeline)s AND kind = %(kind)s AND system_identifier = %(system)s
               AND database = %(database)s AND name = %(name)s
            """,
            _values(lease.pipeline, owned),
        )


def _values(pipeline: str, owned: OwnedObject) -> dict[str, Any]:
    return {
        "pipeline": pipeline,
        "kind": owned.kind,
        "system": owned.system_identifier,
        "database": owned.database,
        "name": owned.name,
    }
