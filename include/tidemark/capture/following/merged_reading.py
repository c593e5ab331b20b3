"""Waits until a run that follows the source has merged what a backfill or a verify has read: `is_merged_by_follower`.

    read_chunks ──► watermark ──► the next cycle of the run that follows: drain, merge ──► nothing is left to do

Otherwise the backfill's own tasks would interrupt that run, and start a Spark application beside its warm one. They
are needed where no run follows, and where one does not get on: a table is parked, or a reader has to read again.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from tidemark.ledger import followers, migrations
from tidemark.ledger.captured import merge_states
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.reading.backfill_progress import Progress, progress
from tidemark.run import Run
from tidemark.wait_log import Wait
from tidemark.wording import counted

LOOK_S: Final = 1.0


def is_merged_by_follower(run: Run, *, wait_s: float = 0.0) -> bool:
    """Whether a run follows the source, and no backfill or verify of `run` is open any more. This is waited for up to
    `wait_s`, while a run follows and can merge the tables."""
    with open_ledger(run.ledger, run.pipeline) as book:
        migrations.require(book.connection)
        wait = Wait(wait_s, every_s=LOOK_S)
        while followers.is_following(book):
            left = [one for one in progress(book, run.run_id) if one.state == "open"]
            if not left:
                wait.log_end()
                return True
            if not _can_be_merged(run, book, left) or not wait.pause(partial(_awaited, left)):
                break
    return False


def _awaited(left: list[Progress]) -> str:
    return f"the run that follows the source, to merge what was read of {counted(len(left), 'table')}"


def _can_be_merged(run: Run, book: Ledger, left: list[Progress]) -> bool:
    """Whether a merge is all that one of them waits for."""
    may_be_merged = merge_states.due(book, run.config.bounds.unpark_retry_s)
    return any(one.table in may_be_merged and one.ranges_done == one.ranges for one in left)
