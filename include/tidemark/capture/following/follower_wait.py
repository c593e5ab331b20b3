"""Waits until a run that follows the source has merged what a backfill or a verify has read: `wait_for_follower`.

    read_chunks ──► watermark ──► the next cycle of the run that follows: drain, merge ──► nothing is left to do

If the backfill's own tasks did this, they would interrupt that run, and start a second Spark application. They do it
if no run follows, or if that run has not merged everything in time.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from tidemark.findings import listed
from tidemark.ledger import followers, migrations
from tidemark.ledger.captured import merge_states, replays
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.reading import backfills
from tidemark.run import Run
from tidemark.wait_log import Wait
from tidemark.wording import duration

log = logging.getLogger(__name__)

POLL_S: Final = 1.0
# The run that follows lacks the slot for seconds while it hands over to the next one, checks a changed pipeline file,
# lets another task in, or is tried again.
GAP_S: Final = 45.0


def wait_for_follower(run: Run, *, wait_s: float = 0.0) -> bool:
    """Returns True if a run follows the source and no backfill or verify of `run` is open.

    Waits up to `wait_s`, while a run follows and at least one open table needs only a merge. Logs why it gives up.
    """
    with open_ledger(run.ledger, run.pipeline) as book:
        migrations.require(book.connection)
        if not followers.is_following(book):
            return False
        wait, followed_at = Wait(wait_s, every_s=POLL_S), run.clock()
        while tables := backfills.open_tables_of(book, run.run_id):
            if followers.is_following(book):
                followed_at = run.clock()
            if run.clock() - followed_at > GAP_S:
                reason = "no run follows the source any more"
            elif not _can_be_merged(run, book, tables):
                reason = f"no merge can complete {listed(tables)}: parked, paused, replayed, or to be read again"
            elif not wait.pause(partial(_awaited, tables)):
                reason = f"the run that follows has not merged {listed(tables)} within {duration(wait_s)}"
            else:
                continue
            log.info("This run drains, merges and confirms itself: %s", reason)
            return False
        wait.log_end()
        return True


def _awaited(tables: dict[str, bool]) -> str:
    return f"the run that follows the source, to merge what was read of {listed(tables)}"


def _can_be_merged(run: Run, book: Ledger, tables: dict[str, bool]) -> bool:
    """Whether at least one of these tables is read to its end and may be merged."""
    may_be_merged = merge_states.due(book, run.config.bounds.unpark_retry_s) - replays.waiting(book)
    return any(is_read and table in may_be_merged for table, is_read in tables.items())
