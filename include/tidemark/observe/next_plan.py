"""Computes what the next merge would do, table by table, and what it would leave: `tidemark plan`.

It only reads: no plan is recorded, and no lease is taken. A drain or merge in the meantime changes the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from tidemark.capture import deferral
from tidemark.config import PipelineConfig
from tidemark.ledger import leases
from tidemark.ledger.captured import tables
from tidemark.ledger.captured.tables import TableRow
from tidemark.ledger.connection import Ledger
from tidemark.ledger.staged import batches
from tidemark.ledger.staged.batches import TouchedTable
from tidemark.lsn import Lsn
from tidemark.wording import duration, moment


@dataclass(frozen=True, slots=True)
class GenerationBacklog:
    """One table's backlog in one generation. `why_not` is the reason why the next merge leaves it out, "" if it
    does not."""

    table: str
    generation: int
    batches: int
    changes: int
    bytes: int
    chunks: int
    sweeps: int
    start_lsn: Lsn
    end_lsn: Lsn
    why_not: str = ""


def read(ledger: Ledger, config: PipelineConfig, now: datetime) -> list[GenerationBacklog]:
    """The backlogs by table, those that are merged first in front."""
    with ledger.transaction():
        ledger.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        due = deferral.due_tables(ledger, config, now)
        rows = {row.table: row for row in tables.all_of(ledger)}
        held = leases.holders(ledger)
        unapplied = batches.unapplied(ledger)
    oldest = min((touched.generation for touched in unapplied if touched.table in due.tables), default=None)
    backlogs = []
    for (table, generation), touches in groupby(unapplied, key=lambda touched: (touched.table, touched.generation)):
        why_not = ""
        if table in due.deferred:
            why_not = f"it waits by choice until {moment(due.deferred[table])}"
        elif table not in due.tables:
            why_not = _held_back(config, rows[table])
        elif generation != oldest:
            why_not = f"what waits of generation {oldest} comes first"
        elif leases.of_table(table) in held:
            why_not = f"{held[leases.of_table(table)]} holds it"
        backlogs.append(_backlog(table, generation, list(touches), why_not))
    return sorted(backlogs, key=lambda backlog: (backlog.why_not != "", backlog.table, backlog.generation))


def _held_back(config: PipelineConfig, row: TableRow) -> str:
    if row.life.is_paused:
        return f"it is paused by {row.paused_by}"
    if row.life.is_parked and row.error is not None:
        again = ""
        if row.error.move == "RETRY":
            again = f", and tried again {duration(config.bounds.unpark_retry_s)} after the last time"
        return f"it is parked ({row.error.kind}){again}"
    return f"it is {row.life.merge}"


def _backlog(table: str, generation: int, touches: list[TouchedTable], why_not: str) -> GenerationBacklog:
    return GenerationBacklog(
        table=table,
        generation=generation,
        batches=len(touches),
        changes=sum(sum(touched.counts.values()) for touched in touches),
        bytes=sum(_bytes(touched) for touched in touches),
        chunks=sum(len(touched.claims) for touched in touches),
        sweeps=sum(len(touched.sweeps) for touched in touches),
        start_lsn=touches[0].start_lsn,
        end_lsn=touches[-1].end_lsn,
        why_not=why_not,
    )


def _bytes(touched: TouchedTable) -> int:
    claimed = [file for claim in touched.claims for file in claim.files]
    return sum(file.bytes for file in (*touched.files, *claimed))
