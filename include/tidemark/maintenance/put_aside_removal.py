"""Deletes Delta tables that were put aside for longer than `put_aside_days` (`ledger.captured.put_aside`).

    the table's lease ─► ledger: its tables go ─► current ─► history ─► ledger: they are gone

They get no more merges, and their id is never reused. So after a kill at any step, the next run deletes the rest. A
driver that outlived its task fails, or leaves a log of one commit that has no reader.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from tidemark.capture import lake_folder
from tidemark.errors import LeaseTaken
from tidemark.formats import layout
from tidemark.ledger import leases
from tidemark.ledger.captured import put_aside
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.staged import generations
from tidemark.names import TableName
from tidemark.run import Run
from tidemark.storage.store import Store

log = logging.getLogger(__name__)


def remove_put_aside(run: Run) -> list[str]:
    """Delete the Delta tables that were put aside for long enough; returns their tables. A leased table is left to
    the next run. Raises what `lake_folder.require` raises."""
    config = run.config
    if config.maintenance.put_aside_days is None:
        return []
    removed = []
    before = run.now() - timedelta(days=config.maintenance.put_aside_days)
    with open_ledger(run.ledger, run.pipeline, config.application_name) as book:
        store = Store(config.lake, config.lake_access)
        due = put_aside.due(book, before)
        if due:
            lake_folder.require(config, store, generations.required(book))  # in another lake they would look removed
        for table in due:
            name = leases.of_table(table)
            try:
                with leases.hold(run.ledger, run.pipeline, name, run.holder) as lease:
                    if not put_aside.begin_removal(book, lease, table):
                        continue
                    name_in_lake = TableName.parse(table)
                    store.delete(layout.current_table(run.pipeline, name_in_lake))
                    # Last: as long as history is there, everything of the table can be told.
                    store.delete(layout.history_table(run.pipeline, name_in_lake))
                    put_aside.removed(book, table)
            except LeaseTaken as busy:
                log.info("Left to the next run: %s", busy)
                continue
            log.info("The Delta tables of %s, which was put aside, are removed", table)
            removed.append(table)
    return removed
