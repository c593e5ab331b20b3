"""Reads the ranges of a first load in several processes under one snapshot: mode `exported_snapshot`.

    temporary slot ──EXPORT_SNAPSHOT──► snapshot and consistent point
        │ held open by this process        │ imported by every chunk's transaction
        ▼                                  ▼
    ends with its session              reader processes, each `read_chunks` with the snapshot

The snapshot contains exactly the commits below the consistent point, so all chunks are as of one LSN. After a retry, or
the end of the exporting session, the remaining chunks are as of a later one. Chunks are claimed by their high
watermarks as usual. The pipeline's slot and generation do not change. A dead reader process is started again and
continues at its range's cursor; after repeated deaths its range is released. If the exporting session ends, finished
chunks count, and the readers log it and continue in chunk mode. The cost: the snapshot is open during the whole load,
so the source removes no dead rows in that time (R9). Source: PostgreSQL documentation, 54.4 "Streaming Replication
Protocol" (CREATE_REPLICATION_SLOT), 9.28.5 "Snapshot Synchronization Functions".
"""

from __future__ import annotations

import dataclasses
import logging
import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from threading import Thread
from typing import Final

import psycopg
from psycopg import pq

from tidemark.backfill import read_sessions
from tidemark.backfill.ranges import ReadResult, read_chunks
from tidemark.backfill.read_sessions import ImportedSnapshot
from tidemark.config import PipelineConfig
from tidemark.errors import SnapshotExportBlocked, SnapshotExportFailed, TidemarkError, UnexpectedError
from tidemark.ledger import leases, migrations
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.reading import backfills, chunks
from tidemark.lsn import Lsn
from tidemark.postgres.postgres_session import connect_walsender
from tidemark.postgres.redaction import SPOKEN_BY_A_WALSENDER, from_result
from tidemark.run import Run
from tidemark.source.catalogue.transaction_visibility import transactions_in_flight
from tidemark.staging.pandas_import import block_pandas_import
from tidemark.unexpected_errors import hides_foreign_texts
from tidemark.wait_log import logged_wait
from tidemark.wording import duration

log = logging.getLogger(__name__)

# How often a reader process is started in all.
STARTS: Final = 3


@dataclass(frozen=True, slots=True)
class _Work:
    """What a reader process is given, over its standard input: connection strings are no command line's business."""

    run: Run
    imported: ImportedSnapshot


def read_exported(run: Run, *, readers: int | None = None) -> ReadResult:
    """Read the run's backfills of mode `exported_snapshot` with `readers` processes (default: the pipeline's).

    What no process could finish is left for `read_chunks`. Raises what a reader raised, or SnapshotExportFailed.
    """
    config = run.config
    with open_ledger(run.ledger, config.pipeline, config.application_name) as book:
        migrations.require(book.connection)
        leases.give_back_of_dead_processes(book, run.holder)  # of a try that was killed
        exported = {b.backfill for b in backfills.of_run(book, run.run_id) if b.mode == "exported_snapshot"}
        free = [r for r in chunks.free_ranges(book, run.run_id, run.holder) if r.backfill in exported]
    if not free:
        return ReadResult()
    with exported_snapshot(config, run.source) as imported:
        log.info("Exported snapshot %s as of %s", imported.identifier, imported.consistent_point)
        count = min(readers or config.bounds.readers, len(free))
        works = [
            _Work(dataclasses.replace(run, holder=f"{run.holder}/{number}"), imported) for number in range(1, count + 1)
        ]
        try:
            return _run(works)
        finally:
            with suppress(psycopg.Error, TidemarkError), open_ledger(run.ledger, config.pipeline) as book:
                # Where the ledger is away they expire by themselves; that must not hide how the reading ended.
                leases.give_back_of_dead_processes(book, run.holder)


@contextmanager
def exported_snapshot(config: PipelineConfig, source: str) -> Iterator[ImportedSnapshot]:
    """A snapshot that others may import while the block runs. The session must stay as it is: its next command, or its
    end, ends the export."""
    name = f"tidemark_backfill_{token_hex(8)}"
    with connect_walsender(source, application_name=config.application_name) as conn:
        conn.execute(read_sessions.NO_TIMEOUTS)
        # The slot begins when every transaction that is open now has ended; each is waited for as for a lock.
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
    error = from_result(result, SPOKEN_BY_A_WALSENDER)
    if isinstance(error, psycopg.errors.LockNotAvailable):
        waited = duration(config.bounds.join_wait_s)
        return SnapshotExportBlocked(waited=waited, blockers=_open_now(config, source))
    return SnapshotExportFailed(detail=str(error) or "the server gave no reason")


def _open_now(config: PipelineConfig, source: str) -> str:
    with read_sessions.connect(source, config) as other:
        return "; ".join(transactions_in_flight(other)) or "they have just ended"


# --- the processes ----------------------------------------------------------------------------------------------------


def _run(works: list[_Work]) -> ReadResult:
    """Keep the processes at work until each has ended well, failed, or was started `STARTS` times."""
    result = ReadResult()
    running = {number: _start(work) for number, work in enumerate(works)}
    starts = dict.fromkeys(running, 1)
    failed: TidemarkError | None = None
    try:
        while running:
            for number, process in list(running.items()):
                if process.poll() is None:
                    continue
                work = works[number]
                del running[number]
                outcome = _outcome(process)
                if isinstance(outcome, ReadResult):
                    result += outcome
                elif outcome is not None:
                    failed = outcome
                elif starts[number] < STARTS:
                    log.warning("Reader %s died (exit code %s); starting it again", work.run.holder, process.returncode)
                    starts[number] += 1
                    running[number] = _start(work)
                else:
                    log.error("Reader %s died %d times; its range goes on in chunk mode", work.run.holder, STARTS)
            time.sleep(0.1)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    if failed is not None:
        raise failed
    return result


def _start(work: _Work) -> subprocess.Popen[bytes]:
    """The process ends when this one does: it watches its standard input, which stays open for that."""
    home = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import serve; serve()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdin is not None
    pickled = pickle.dumps(work)
    try:
        process.stdin.write(len(pickled).to_bytes(8, "big") + pickled)
        process.stdin.flush()
    except BrokenPipeError:
        log.warning("Reader %s died before it began", work.run.holder)
    return process


def _outcome(process: subprocess.Popen[bytes]) -> ReadResult | TidemarkError | None:
    """What the process said at its end; None if it was killed or failed in a way that nobody thought of."""
    assert process.stdout is not None
    pickled = process.stdout.read()
    process.stdout.close()
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode != 0 or not pickled:
        return None
    outcome: ReadResult | TidemarkError = pickle.loads(pickled)
    return outcome


def serve() -> None:
    """A reader process: work in, outcome out. Its log goes to standard error, which it shares with the task."""
    block_pandas_import()
    outcome_file = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s"
    )
    pipe = sys.stdin.buffer
    work: _Work = pickle.loads(pipe.read(int.from_bytes(pipe.read(8), "big")))
    Thread(target=_end_with, args=(pipe.fileno(),), daemon=True).start()
    outcome: ReadResult | TidemarkError
    try:
        outcome = hides_foreign_texts()(read_chunks)(work.run, imported=work.imported)
    except UnexpectedError as error:
        log.error("%s%s", "".join(traceback.format_tb(error.__traceback__)), error)
        raise SystemExit(1) from None
    except TidemarkError as error:
        log.error("%s", error)
        outcome = error
    outcome_file.write(pickle.dumps(outcome))
    outcome_file.close()


def _end_with(descriptor: int) -> None:
    """Nothing more is written to the standard input: it ends when the process that started this one does."""
    while os.read(descriptor, 1):
        pass
    os._exit(1)
