"""A range of the source's WAL -> the files of tables that it writes to, as the extension pg_walinspect reads it (R8).

A transaction that inserts, updates or deletes a row logs a record with its own id that names the page's relation, by
the number of its file (pg_class.relfilenode); one that empties or rewrites a table logs the file that it creates. So a
table none of whose files is named in the range has the same rows behind it as before. Rather too much is counted than
too little: parts of transactions, and what commits behind the range. Left out are transactions of which one slice has
both the records and the end, if that is an abort or was staged; records
without a transaction id, as those of VACUUM and all-visible pages, pages as a whole that are logged for a hint bit, and
locks of rows (SELECT FOR UPDATE, a foreign key's look at the row that it refers to): none of them changes a row.

The last transaction that was staged has to be in what is read (`Known`): then this is the WAL that was staged from, and
not that of an older copy which was written on, and it was read for good. Source: PostgreSQL documentation, F.37
"pg_walinspect"; src/backend/access/rmgrdesc.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg

from tidemark.lsn import Lsn
from tidemark.postgres_session import open_session, to_the_same_server

# Of WAL that one statement reads, whose result is spilled at the source, and of that altogether.
SLICE_BYTES: Final = 32 * 1024 * 1024
MOST_BYTES: Final = 8 * 1024 * 1024 * 1024
# What one statement may take.
SLICE_S: Final = 120
# A heartbeat's message begins this much below the end of its commit record, which takes some fifty bytes.
_BEFORE_BYTES: Final = 8192

# A row of pg_get_wal_records_info names all blocks of its record: "blkref #0: rel 1663/16384/16385 blk 0", with
# "fork fsm" or the like for what is no table's own file, and on some versions "fork main". A commit's description
# begins with its time; that of COMMIT PREPARED with the id of the transaction.
_QUERY: Final = r"""
    WITH records AS MATERIALIZED (SELECT * FROM {schema}.pg_get_wal_records_info(%(start)s::pg_lsn, %(end)s::pg_lsn)),
         settled AS (SELECT xid FROM records WHERE resource_manager = 'Transaction'
                        AND (record_type = 'ABORT' OR record_type = 'COMMIT' AND start_lsn < %(staged)s::pg_lsn))
    SELECT (SELECT max(end_lsn)::text FROM records),
           (SELECT count(*) > 0 FROM records WHERE {known}),
           ARRAY(SELECT DISTINCT block[1]::bigint
                   FROM records, regexp_matches(block_ref, %(block)s, 'g') AS block
                  WHERE xid::text <> '0' AND xid NOT IN (SELECT xid FROM settled) AND start_lsn >= %(counted)s::pg_lsn
                    AND (resource_manager, record_type) NOT IN
                        (('Heap', 'LOCK'), ('Heap2', 'LOCK_UPDATED'), ('XLOG', 'FPI_FOR_HINT'))),
           ARRAY(SELECT DISTINCT substring(description from '/(\d+)$')::bigint FROM records
                  WHERE resource_manager = 'Storage' AND record_type = 'CREATE' AND start_lsn >= %(counted)s::pg_lsn
                    AND description ~ %(created)s AND xid NOT IN (SELECT xid FROM settled)),
           ARRAY(SELECT xid::text FROM records
                  WHERE resource_manager = 'Transaction' AND record_type = 'PREPARE' AND start_lsn >= %(from)s::pg_lsn),
           ARRAY(SELECT substring(description from '^(\d+): ') FROM records
                  WHERE resource_manager = 'Transaction' AND record_type = 'COMMIT_PREPARED'
                    AND start_lsn >= %(from)s::pg_lsn)
"""
_HEARTBEAT: Final = "resource_manager = 'LogicalMessage' AND strpos(description, %(heartbeat)s) > 0"
_COMMIT: Final = r"""
    resource_manager = 'Transaction' AND start_lsn = %(commit)s::pg_lsn
    AND (record_type = 'COMMIT' AND xid::text = %(xid)s
         OR record_type = 'COMMIT_PREPARED' AND description LIKE %(xid)s || ': %%')
    AND EXISTS (SELECT 1 FROM regexp_matches(description, '\d{{4,}}-\d\d-\d\d [\d:.]+', 'g') AS moment
                 WHERE moment[1]::timestamp = %(committed)s::timestamp)
"""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """`attempt` staged the heartbeat whose transaction ends at `end_lsn`."""

    end_lsn: Lsn
    attempt: str

    condition = _HEARTBEAT

    @property
    def from_lsn(self) -> Lsn:
        return Lsn(max(0, self.end_lsn - _BEFORE_BYTES))

    @property
    def behind_lsn(self) -> Lsn:
        """What commits below was staged."""
        return self.end_lsn

    def asked(self) -> dict[str, str]:
        return {"heartbeat": self.attempt.encode().hex(" ").upper()}


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction that was staged, by its record's LSN, its id and its time in UTC."""

    commit_lsn: Lsn
    xid: int
    committed_at: datetime

    condition = _COMMIT

    @property
    def from_lsn(self) -> Lsn:
        return self.commit_lsn

    @property
    def behind_lsn(self) -> Lsn:
        return Lsn(self.commit_lsn + 1)

    def asked(self) -> dict[str, str]:
        return {
            "commit": str(self.commit_lsn),
            "xid": str(self.xid & 0xFFFFFFFF),
            "committed": self.committed_at.replace(tzinfo=None).isoformat(" "),
        }


# The last transaction that was staged below the gap: behind it nothing of a captured table is known.
Known = Heartbeat | Commit


class Unread(Exception):
    """The WAL does not say what was touched; str() says why, as half a sentence. Internal."""


def touched_files(
    source: psycopg.Connection[Any], start_lsn: Lsn | None, end_lsn: Lsn, *, known: Known, begun_from: Lsn | None = None
) -> frozenset[int]:
    """The relfilenodes of the session's database that transactions wrote to or created, which were not staged and
    commit below `end_lsn`.

    What is read begins at `start_lsn`, below which none of them has WAL, or at the known transaction. `begun_from`: a
    server that took over there; of what had begun before, prepared transactions alone can still commit. Over a session
    of its own. Raises Unread where the extension, the right to call it or some of the WAL is missing, where that is
    another server's, or where a transaction commits that was prepared before the server took over.
    """
    start_lsn = known.from_lsn if start_lsn is None else Lsn(min(start_lsn, known.from_lsn))
    if end_lsn - start_lsn > MOST_BYTES:
        raise Unread(f"there are {end_lsn - start_lsn:,} bytes of WAL from {start_lsn} on, more than are read for it")
    with open_session(to_the_same_server(source), "source") as session:
        row = session.execute(
            """
            SELECT quote_ident(n.nspname), d.oid::bigint FROM pg_database d, pg_extension e
              JOIN pg_namespace n ON n.oid = e.extnamespace
             WHERE e.extname = 'pg_walinspect' AND d.datname = current_database()
            """
        ).fetchone()
        if row is None:
            raise Unread("the extension pg_walinspect, which could tell the touched tables, is not in the database")
        schema, database = row
        session.execute(
            "SELECT set_config('statement_timeout', %s, false), set_config('timezone', 'UTC', false)", (f"{SLICE_S}s",)
        )
        asked = {
            "staged": str(known.behind_lsn),
            "block": rf"rel \d+/{database}/(\d+)(?: fork main)? blk",
            "created": rf"/{database}/\d+$",
            "counted": str(start_lsn if begun_from is None else known.behind_lsn),
            "from": str(start_lsn if begun_from is None else begun_from),
            **known.asked(),
        }
        query = _QUERY.format(schema=schema, known=known.condition.format()).encode()
        try:
            return _read(session, query, asked, start_lsn, end_lsn, prepared_before=begun_from is None)
        except psycopg.errors.InsufficientPrivilege:
            raise Unread("the role may not call pg_get_wal_records_info of the extension pg_walinspect") from None
        except psycopg.errors.QueryCanceled:
            raise Unread("the WAL in between was not read in time") from None
        except psycopg.DatabaseError as refused:
            if session.broken:
                raise
            state = f"SQLSTATE {refused.sqlstate}"
            raise Unread(f"the source has not all WAL from {start_lsn} on any more ({state})") from None


def _read(
    session: psycopg.Connection[Any],
    query: bytes,
    asked: dict[str, str],
    start_lsn: Lsn,
    end_lsn: Lsn,
    *,
    prepared_before: bool,
) -> frozenset[int]:
    """Slice by slice; each begins where the last record of the one before ended, so that none lies across."""
    files: set[int] = set()
    prepared: set[str] = set()
    ended: set[str] = set()
    is_known, slice_bytes, to_lsn = False, SLICE_BYTES, start_lsn
    while to_lsn < end_lsn:
        to_lsn = Lsn(min(start_lsn + slice_bytes, end_lsn))
        row = session.execute(query, {**asked, "start": str(start_lsn), "end": str(to_lsn)}).fetchone()
        assert row is not None
        read_to, has_it, written, created, of_prepare, of_commit = row
        files.update(written, created)
        prepared.update(of_prepare)
        ended.update(of_commit)
        is_known |= has_it
        if read_to is None:
            slice_bytes *= 2  # one record is longer
        else:
            start_lsn, slice_bytes = Lsn.parse(read_to), SLICE_BYTES
    if not is_known:
        raise Unread("the WAL that the source has does not hold the last transaction that was staged")
    if not prepared_before and not ended <= prepared:
        raise Unread("a transaction was committed that had been prepared before the server took over")
    return frozenset(files)
