"""Which pipeline file holds: the digest that preflight noted, and those that it noted before (R8).

    a new digest ──noted by preflight──► holds ──preflight notes another──► superseded ──after `settle_s`──► as if new

Workers get their files one after the other, a minute apart where a repository is synchronised. A drain with an older
file would skip a table that a newer file's preflight let join, and staged would move past its changes; one that does
not know a new mask yet would stage the column in clear. So every stage that acts on what the file says of tables goes
on with the file that holds, and with no other one, older or newer. A preflight with a file that was replaced just now
is a worker that lags; somebody who goes back on purpose is believed after a while.
"""

from __future__ import annotations

from typing import Any

import psycopg

from tidemark.errors import PipelineFileDiffers, PipelineFileSuperseded
from tidemark.ledger.leases import SLOT, Lease


def holds(connection: psycopg.Connection[Any], pipeline: str, digest: str) -> bool:
    """Whether preflight noted this digest last."""
    return _held(connection, pipeline) == digest


def require(connection: psycopg.Connection[Any], pipeline: str, digest: str) -> None:
    """Raises PipelineFileDiffers where another digest holds. Within a transaction it holds until that ends. A ledger in
    which no preflight noted any yet, as behind an upgrade, lets pass."""
    held = _held(connection, pipeline, lock="FOR SHARE")
    if held is not None and held != digest:
        raise PipelineFileDiffers(pipeline=pipeline)


def refuse_superseded(connection: psycopg.Connection[Any], pipeline: str, digest: str, settle_s: float) -> None:
    """Raises PipelineFileSuperseded where another digest took this one's place less than `settle_s` seconds ago."""
    row = connection.execute(
        """
        SELECT superseded_at, superseded_at + make_interval(secs => %(settle_s)s) FROM tidemark.pipeline_files
         WHERE pipeline = %(pipeline)s AND digest = %(digest)s
           AND superseded_at > clock_timestamp() - make_interval(secs => %(settle_s)s)
        """,
        {"pipeline": pipeline, "digest": digest, "settle_s": settle_s},
    ).fetchone()
    if row is not None:
        superseded_at, until = (f"{moment:%Y-%m-%d %H:%M:%S %Z}" for moment in row)
        raise PipelineFileSuperseded(pipeline=pipeline, superseded_at=superseded_at, until=until)


def note(connection: psycopg.Connection[Any], lease: Lease, digest: str, settle_s: float) -> None:
    """From here on this digest holds. Needs the lease `slot`, so that no drain works meanwhile. Raises what
    `refuse_superseded` raises."""
    with connection.transaction():
        lease.check(connection, SLOT)
        held = _held(connection, lease.pipeline, lock="FOR UPDATE")
        if held == digest:
            return
        refuse_superseded(connection, lease.pipeline, digest, settle_s)
        connection.execute(
            "INSERT INTO tidemark.pipelines (pipeline) VALUES (%s) ON CONFLICT DO NOTHING", (lease.pipeline,)
        )
        connection.execute(
            "UPDATE tidemark.pipeline_files SET superseded_at = clock_timestamp() "
            "WHERE pipeline = %s AND superseded_at IS NULL",
            (lease.pipeline,),
        )
        connection.execute(
            "INSERT INTO tidemark.pipeline_files (pipeline, digest) VALUES (%s, %s) ON CONFLICT (pipeline, digest) "
            "DO UPDATE SET noted_at = clock_timestamp(), superseded_at = NULL",
            (lease.pipeline, digest),
        )


def _held(connection: psycopg.Connection[Any], pipeline: str, lock: str = "") -> str | None:
    row = connection.execute(
        f"SELECT digest FROM tidemark.pipeline_files WHERE pipeline = %s AND superseded_at IS NULL {lock}".encode(),
        (pipeline,),
    ).fetchone()
    return None if row is None else str(row[0])
