"""Rebuilds a lost ledger from staging, plans and their results, before a run needs it (R4).

    generation.json, retired.json ──► generations, and how far each was cleaned up
    manifests                     ──► batches, the tables' parts of them, schema versions, fingerprints, marks, claims
    plans and results             ──► positions, failures, holes

The first run after the loss does the same by itself (`recovery`). A rebuild by hand needs no source, and merges and
confirms nothing. It reports what the ledger has again, and what the lake does not have. A table whose position is in no
result gets it from its Delta tables at the next merge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.capture import lake_folder
from tidemark.capture.continuity.recovery import list_staging, register_again, sends_nothing
from tidemark.capture.merge_planning import ingest
from tidemark.ledger import migrations
from tidemark.ledger.captured import tables
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.leases import SLOT, hold
from tidemark.ledger.staged import batches, generations
from tidemark.ledger.staged.generations import Generation
from tidemark.run import Run
from tidemark.storage.store import Store

# The records that no file in the lake has.
NOT_IN_THE_LAKE: Final = (
    "joins: the next preflight judges each table's anew, and a backfill is due of those that have rows",
    "open backfills and verifies, and what verifies have proven: they begin anew",
    "tables that were paused, or that merges parked: the former are merged again, the latter fail and park again",
    "which columns masks and left-out columns follow that were renamed: name them in the file as they are called now",
    "runs, plots and alerts of the past",
)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The restored records, and the generation that is open after the rebuild, None if staging has none.
    `unapplied` maps each table with waiting batches to their number."""

    batches: int
    plans: int
    tables: int
    generation: Generation | None
    unapplied: dict[str, int]


def rebuild(run: Run) -> Rebuilt:
    """Bring the pipeline's ledger, whose schema is up to date, level with the lake. A second run changes nothing.

    It does not wait for a drain: raises LeaseTaken while one works. Raises LedgerNotReady, and the errors of
    `lake_folder.require` and `register_again`.
    """
    store = Store(run.config.lake, run.config.lake_access)
    with open_ledger(run.ledger, run.pipeline) as book:
        migrations.require(book.connection)
        with hold(run.ledger, run.pipeline, SLOT, run.holder) as lease:
            if (opened := generations.current(book)) is not None:
                lake_folder.require(run.config, store, opened)
            registered = register_again(book, list_staging(book, store), lease, sends_nothing)
    ingested = ingest(run)
    with open_ledger(run.ledger, run.pipeline) as book:
        known = [row.table for row in tables.all_of(book)]
        return Rebuilt(
            batches=len(registered),
            plans=len(ingested.plans),
            tables=len(known),
            generation=generations.current(book),
            unapplied=batches.unapplied_counts(book, known),
        )
