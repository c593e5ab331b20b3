"""A gap between what was staged and where the slot begins now -> the tables that it touched, where the WAL tells (R8).

    ── restart ─────── staged ── lost ── slot ──►
       └ no transaction that is not staged has WAL below: from here on all of it is read, up to the slot

A table is taken for untouched where nothing is left to doubt, and only there: the look at the catalogue is the one that
the ledger has, files included, none of its files was written to by a transaction in that WAL, nor created in it, and
before the gap it lacked nothing. What the capture then goes on with is exact: its rows are those from before the gap,
and what commits from the slot's position on is sent. All others are marked, as all are where the WAL does not say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import psycopg

from tidemark.capture.places import Places
from tidemark.config import PipelineConfig
from tidemark.ledger import batches, joins, tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.generations import Generation
from tidemark.ledger.tables import TableRow
from tidemark.lsn import Lsn
from tidemark.schema import table_life
from tidemark.schema.fingerprint import Fingerprint
from tidemark.source import catalog
from tidemark.source.slot import read_server
from tidemark.source.touched_files import Unread, touched_files


@dataclass(frozen=True, slots=True)
class Touched:
    """`tables` are the captured ones that may differ, of `count`; None where nobody can tell, for the `reason`, half a
    sentence."""

    tables: tuple[str, ...] | None
    count: int
    reason: str = ""


def judge(
    config: PipelineConfig, source: psycopg.Connection[Any], ledger: Ledger, generation: Generation, slot_lsn: Lsn
) -> Touched:
    """Which tables transactions touched that were not staged in the generation, and commit below `slot_lsn`. All that
    was staged must be in the history of the source; the slot is there already."""
    rows = [row for row in tables.all_of(ledger) if row.life.is_captured]  # one that left joins anew, if ever
    if generation.restart_lsn is None or generation.heartbeat_lsn is None:
        return Touched(None, len(rows), "nobody noted from where on the WAL of the gap would have to be read")
    attempt = batches.attempt_of(ledger, generation.number, generation.heartbeat_lsn)
    if attempt is None:
        return Touched(None, len(rows), "the batch with the last heartbeat is not known any more")
    heartbeat_lsn, staged_lsn = generation.heartbeat_lsn, generation.staged_lsn
    if heartbeat_lsn < staged_lsn and read_server(source).started_at != generation.source_started_at:
        # What is staged above the heartbeat an older copy of the disk may lack. None is put under a server that runs.
        return Touched(None, len(rows), "the source was started anew since a run that had no time for all changes")
    try:
        files = touched_files(
            source, generation.restart_lsn, staged_lsn, slot_lsn, heartbeat_lsn=heartbeat_lsn, attempt=attempt
        )
    except Unread as unread:
        return Touched(None, len(rows), str(unread))
    places = Places(config, ledger, generation.system_identifier, records=False)
    captured = places.kept(table for table in catalog.captured_tables(source, config) if table.published)
    looks = catalog.fingerprint(source, config.publication, captured)
    unread_files = catalog.not_in_heaps(source, [oid for look in looks.values() for oid in look.relations()])
    joined_before = joins.judged_below(ledger, generation.staged_lsn)
    touched = tuple(
        row.table
        for row in rows
        if row.table not in joined_before
        or not _is_untouched(row, looks.get(row.table), files)
        or not unread_files.isdisjoint(looks[row.table].relations())
    )
    return Touched(touched, len(rows))


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
