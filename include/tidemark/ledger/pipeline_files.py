"""Records which pipeline file is in force: the digest of the last preflight, and earlier ones (R8).

    a new digest ──noted by preflight──► holds ──preflight notes another──► superseded ──after `settle_s`──► as if new

Workers receive a changed file at different times. A drain with an older file would skip a table that a newer file's
preflight let join, or stage a newly masked column in clear. So every stage works only with the file in force. A
preflight with a recently replaced file counts as a lagging worker; after `settle_s` it counts as a person who restored
the older file.

Chunks that were read with the previous file may hold columns that are masked now. If the new file treats columns
differently, open backfills are closed when it is noted, and none of their chunks is claimed.
"""

from __future__ import annotations

from tidemark.config import PipelineConfig
from tidemark.errors import PipelineFileDiffers, PipelineFileSuperseded
from tidemark.ledger.connection import Ledger
from tidemark.ledger.leases import SLOT, Lease
from tidemark.ledger.reading import backfills

_CLOSED = "the pipeline file says something else of columns since; what is needed is read anew"


def is_in_force(ledger: Ledger, digest: str) -> bool:
    """Whether preflight noted this digest last."""
    return _file_in_force(ledger) == digest


def require(ledger: Ledger, digest: str) -> None:
    """Raises PipelineFileDiffers if another digest holds. Within a transaction it holds until that ends. A ledger in
    which no preflight noted any yet, as behind an upgrade, lets pass."""
    # A row that every note locks, and that stays: the digest's own is another one behind a note that was waited for.
    ledger.execute("SELECT 1 FROM tidemark.pipelines WHERE pipeline = %s FOR SHARE", (ledger.pipeline,))
    noted = _file_in_force(ledger)
    if noted is not None and noted != digest:
        raise PipelineFileDiffers(pipeline=ledger.pipeline)


def refuse_superseded(ledger: Ledger, digest: str, settle_s: float) -> None:
    """Raises PipelineFileSuperseded if another digest took this one's place less than `settle_s` seconds ago; not if
    that lies ahead, since the ledger's clock was put back."""
    row = ledger.execute(
        """
        SELECT superseded_at, superseded_at + make_interval(secs => %(settle_s)s) FROM tidemark.pipeline_files
         WHERE pipeline = %(pipeline)s AND digest = %(digest)s
           AND superseded_at BETWEEN clock_timestamp() - make_interval(secs => %(settle_s)s) AND clock_timestamp()
        """,
        {"digest": digest, "settle_s": settle_s},
    ).fetchone()
    if row is not None:
        superseded_at, until = (f"{moment:%Y-%m-%d %H:%M:%S %Z}" for moment in row)
        raise PipelineFileSuperseded(pipeline=ledger.pipeline, superseded_at=superseded_at, until=until)


def note(ledger: Ledger, lease: Lease, config: PipelineConfig) -> None:
    """From here on this file holds. Needs the lease `slot`, so that no drain works meanwhile. Raises what
    `refuse_superseded` raises."""
    digest = config.digest
    with ledger.transaction():
        lease.check(ledger, SLOT)
        ledger.insert("pipelines", or_nothing=True)
        # Not FOR UPDATE, which would wait for whoever writes a row that refers to the pipeline.
        ledger.execute("SELECT 1 FROM tidemark.pipelines WHERE pipeline = %s FOR NO KEY UPDATE", (lease.pipeline,))
        noted = ledger.execute(
            "SELECT digest, columns FROM tidemark.pipeline_files WHERE pipeline = %s AND superseded_at IS NULL",
            (lease.pipeline,),
        ).fetchone()
        if noted is not None and noted[0] == digest:
            return
        refuse_superseded(ledger, digest, config.bounds.file_settle_s)
        if noted is not None and noted[1] != config.columns_digest:
            for backfill in backfills.all_open(ledger):
                backfills.close(ledger, backfill.backfill, _CLOSED)
        ledger.execute(
            "UPDATE tidemark.pipeline_files SET superseded_at = clock_timestamp() "
            "WHERE pipeline = %s AND superseded_at IS NULL",
            (lease.pipeline,),
        )
        ledger.execute(
            "INSERT INTO tidemark.pipeline_files (pipeline, digest, columns) VALUES (%s, %s, %s) "
            "ON CONFLICT (pipeline, digest) DO UPDATE SET noted_at = clock_timestamp(), superseded_at = NULL",
            (lease.pipeline, digest, config.columns_digest),
        )


def _file_in_force(ledger: Ledger) -> str | None:
    return ledger.value(
        "SELECT digest FROM tidemark.pipeline_files WHERE pipeline = %s AND superseded_at IS NULL", (ledger.pipeline,)
    )
