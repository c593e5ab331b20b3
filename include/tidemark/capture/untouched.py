"""A gap between what was staged and where the slot begins now -> the tables that it touched, where the WAL tells (R8).

    ── restart ─────── staged ── lost ── slot ──►
       └ no transaction that is not staged has WAL below: from here on all of it is read, up to the slot

    ── known ────┬──────────── staged            what the source lost, and the lake has: `capture.forked` names it
                 └── lost ── slot ──►            a standby took over that has neither this nor the slot
       └ the last transaction that was staged and is not lost: from here on all is read. What had begun below the fork
         ended with the old server, but for what was prepared there: if that is committed, nobody can tell

A table is taken for untouched where nothing is left to doubt, and only there: the look at the catalogue is the one that
the ledger has, files included, none of its files was written to by a transaction in that WAL, nor created in it, and
before the gap it lacked nothing. What the capture then goes on with is exact: its rows are those from before the gap,
and what commits from the slot's position on is sent. Behind a fork that is so of all rows that no lost transaction
touched. All others are marked, as all are where the WAL does not say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
import pyarrow as pa

from tidemark.capture.places import Places
from tidemark.config import PipelineConfig
from tidemark.formats.manifest import BatchManifest
from tidemark.ledger import batches, joins, tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.generations import Generation
from tidemark.ledger.tables import TableRow
from tidemark.lsn import Lsn
from tidemark.schema import table_life
from tidemark.schema.fingerprint import Fingerprint
from tidemark.source import catalog
from tidemark.source.touched_files import Commit, Heartbeat, Known, Unread, touched_files
from tidemark.staging import transactions
from tidemark.staging.store import Store

# Batches that are looked at for the last transaction: one that touched no captured table may name none.
MOST_BATCHES: Final = 100


@dataclass(frozen=True, slots=True)
class Touched:
    """`tables` are the captured ones that may differ, of `count`; None where nobody can tell, for the `reason`, half a
    sentence. `evidence` is what shows that the others do not."""

    tables: tuple[str, ...] | None
    count: int
    reason: str = ""
    evidence: str = "the source's WAL"


@dataclass(frozen=True, slots=True)
class Gap:
    """Between what was staged of the generation and `slot_lsn`, where the slot is already. `left_lsn`: where the
    source's history left what was staged; None if it has all of that."""

    generation: Generation
    slot_lsn: Lsn
    left_lsn: Lsn | None = None


def judge(config: PipelineConfig, source: psycopg.Connection[Any], ledger: Ledger, store: Store, gap: Gap) -> Touched:
    """Which tables transactions touched that commit in the gap."""
    generation, left_lsn = gap.generation, gap.left_lsn
    rows = [row for row in tables.all_of(ledger) if row.life.is_captured]  # one that left joins anew, if ever
    if left_lsn is None and generation.restart_lsn is None:
        return Touched(None, len(rows), "nobody noted from where on the WAL of the gap would have to be read")
    staged_lsn = generation.staged_lsn if left_lsn is None else left_lsn
    known = last_staged(ledger, store, generation, staged_lsn)
    if known is None:
        return Touched(None, len(rows), "no transaction is known any more that was staged before the gap")
    start_lsn = generation.restart_lsn if left_lsn is None else None
    try:
        files = touched_files(source, start_lsn, gap.slot_lsn, known=known, begun_from=left_lsn)
    except Unread as unread:
        return Touched(None, len(rows), str(unread))
    places = Places(config, ledger, generation.system_identifier, records=False)
    captured = places.kept(table for table in catalog.captured_tables(source, config) if table.published)
    looks = catalog.fingerprint(source, config.publication, captured)
    unread_files = catalog.not_in_heaps(source, [oid for look in looks.values() for oid in look.relations()])
    joined_before = joins.judged_below(ledger, staged_lsn)
    touched = tuple(
        row.table
        for row in rows
        if row.table not in joined_before
        or not _is_untouched(row, looks.get(row.table), files)
        or not unread_files.isdisjoint(looks[row.table].relations())
    )
    return Touched(touched, len(rows))


def last_staged(ledger: Ledger, store: Store, generation: Generation, below_lsn: Lsn) -> Known | None:
    """The last transaction below that position which was staged in the generation, a run's heartbeat if it was that;
    None if staging does not say any more."""
    for batch in batches.before(ledger, generation.number, below_lsn, most=MOST_BATCHES):
        if batch.heartbeat_lsn == batch.end_lsn <= below_lsn:
            return Heartbeat(batch.end_lsn, batch.attempt)
        try:
            manifest = BatchManifest.from_json(store.read(batch.manifest).decode())
            known = (
                None if manifest.transactions is None else transactions.last(store, manifest.transactions, below_lsn)
            )
        except (FileNotFoundError, ValueError, pa.ArrowInvalid):
            return None
        if known is not None:
            return Commit(*known)
    return None


def _is_untouched(row: TableRow, now: Fingerprint | None, files: frozenset[int]) -> bool:
    if now is None or row.fingerprint is None:
        return False
    if (row.life.capture, row.life.target) != (table_life.CAPTURED, table_life.COMPLETE):
        return False
    then = Fingerprint.from_json(row.fingerprint)
    return _silent(then) == _silent(now.carried(then)) and files.isdisjoint(now.files())


def _silent(look: Fingerprint) -> Fingerprint:
    """Without what is for people."""
    return replace(look, comment="", columns=tuple(replace(column, comment="") for column in look.columns))
