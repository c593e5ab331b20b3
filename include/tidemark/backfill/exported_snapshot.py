"""Reads the ranges of a first load under one snapshot: mode `exported_snapshot`.

    temporary slot ──EXPORT_SNAPSHOT──► snapshot and consistent point
        │ held open by this reader         │ imported by every chunk's transaction
        ▼                                  ▼
    ends with its session              `read_chunks` with the snapshot

The snapshot contains exactly the commits below the consistent point, so all chunks are as of one LSN. Chunks are
claimed by their high watermarks as usual. The pipeline's slot and generation do not change.

If the exporting session ends, recorded chunks stay valid. The reader logs it and reads the remaining chunks in chunk
mode. These, and chunks read after a retry, are as of a later LSN.

The snapshot is open during the whole load, so the source removes no dead rows in that time (R9). Source: PostgreSQL
documentation, 54.4 "Streaming Replication Protocol" (CREATE_REPLICATION_SLOT), 9.28.5 "Snapshot Synchronization
Functions".
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex

import psycopg
from psycopg import pq

from tidemark.backfill import read_sessions
from tidemark.backfill.range_reading import ReadResult, read_chunks
from tidemark.backfill.read_sessions import ImportedSnapshot
from tidemark.config import PipelineConfig
from tidemark.errors import SnapshotExportBlocked, SnapshotExportFailed
from tidemark.ledger import migrations
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.reading import backfills, chunks
from tidemark.lsn import Lsn
from tidemark.postgres.postgres_session import connect_walsender
from tidemark.postgres.redaction import SAFE_FROM_A_WALSENDER, from_result
from tidemark.run import Run
from tidemark.source.catalogue.transaction_visibility import transactions_in_flight
from tidemark.wait_log import logged_wait
from tidemark.wording import duration

log = logging.getLogger(__name__)


def read_exported(run: Run) -> ReadResult:
    """Read the run's backfills of mode `exported_snapshot`. Raises SnapshotExportFailed, SnapshotExportBlocked, or
    the errors of `read_chunks`."""
    config = run.config
    with open_ledger(run.ledger, config.pipeline, config.application_name) as book:
        migrations.require(book.connection)
        exported = {b.backfill for b in backfills.of_run(book, run.run_id) if b.mode == "exported_snapshot"}
        free = [r for r in chunks.free_ranges(book, run.run_id, run.holder) if r.backfill in exported]
    if not free:
        return ReadResult()
    with exported_snapshot(config, run.source) as imported:
        log.info("Exported snapshot %s as of %s", imported.identifier, imported.consistent_point)
        return read_chunks(run, imported=imported)


@contextmanager
def exported_snapshot(config: PipelineConfig, source: str) -> Iterator[ImportedSnapshot]:
    """Export a snapshot that other sessions can import while the block runs. The exporting session must run no
    further command, because that, or its end, ends the export."""
    name = f"tidemark_backfill_{token_hex(8)}"
    with connect_walsender(source, application_name=config.application_name) as conn:
        conn.execute(read_sessions.NO_TIMEOUTS)
        # The slot is created when every transaction that is open now has ended. The server waits for each as for a
        # lock, so `lock_timeout` applies.
        conn.execute(f"SELECT set_config('lock_timeout', '{config.bounds.join_wait_s}s', false)")
        command = f"CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')"
        with logged_wait(
            config.bounds.join_wait_s, lambda: f"the end of open transactions: {_open_now(config, source)}"
        ):
            result = conn.pgconn.exec_(command.encode())
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise _why(config, source, result)
        values = [(result.get_value(0, i) or b"").decode() for i in range(result.nfields)]
        yield ImportedSnapshot(values[2], Lsn.parse(values[1]))


def _why(config: PipelineConfig, source: str, result: pq.abc.PGresult) -> SnapshotExportBlocked | SnapshotExportFailed:
    """The error for a slot that could not be created."""
    error = from_result(result, SAFE_FROM_A_WALSENDER)
    if isinstance(error, psycopg.errors.LockNotAvailable):
        waited = duration(config.bounds.join_wait_s)
        return SnapshotExportBlocked(waited=waited, blockers=_open_now(config, source))
    return SnapshotExportFailed(detail=str(error) or "the server gave no reason")


def _open_now(config: PipelineConfig, source: str) -> str:
    """The transactions that are in flight now, for a message."""
    with read_sessions.connect(source, config) as other:
        return "; ".join(transactions_in_flight(other)) or "they have just ended"
