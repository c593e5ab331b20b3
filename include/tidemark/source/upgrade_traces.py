"""Reads the transaction ids that `pg_upgrade` leaves in the catalogue of the new cluster (PostgreSQL 17 and 18).

datfrozenxid of template0     the next transaction id of the old cluster (set_frozenxids)
catalog_xmin of a slot        the next transaction id when `pg_upgrade` made the slot, behind the restored schema

Source: src/bin/pg_upgrade/pg_upgrade.c.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

_XIDS: Final = 2**32


def upgraded_at_xid(source: psycopg.Connection[Any]) -> int:
    """The 64-bit id that the old cluster would have given to its next transaction, 0 if template0 was dropped. If
    `pg_upgrade` did not make the cluster, it is the last id of initdb, which is below the ids of all applications."""
    row = source.execute(
        """
        SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, datfrozenxid::text::bigint
          FROM pg_database WHERE datname = 'template0'
        """
    ).fetchone()
    if row is None:
        return 0  # somebody dropped template0
    next_xid, low_xid = row
    return int(next_xid - (next_xid - low_xid) % _XIDS)


def is_as_restored(source: psycopg.Connection[Any], publication: str, before_xid: int) -> bool:
    """Whether every catalogue row that puts a table into the publication, or a partition under its parent, is older
    than the transaction whose low 32 bits are `before_xid`."""
    row = source.execute(
        """
        WITH written (xmin) AS (
            SELECT xmin FROM pg_publication WHERE pubname = %(publication)s
            UNION ALL
            SELECT r.xmin FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
             WHERE p.pubname = %(publication)s
            UNION ALL
            SELECT n.xmin FROM pg_publication_namespace n JOIN pg_publication p ON p.oid = n.pnpubid
             WHERE p.pubname = %(publication)s
            UNION ALL
            SELECT xmin FROM pg_inherits)
        SELECT coalesce(bool_and(age(xmin) > age(%(before)s::text::xid)), false) FROM written
        """,
        {"publication": publication, "before": before_xid},
    ).fetchone()
    return row is not None and bool(row[0])
