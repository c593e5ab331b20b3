"""Reports an applied backfill: ledger -> `BackfillReport`, whose `str()` is the text of the log.

Counts are the sums of the chunks' results. If a driver died after its commit and before its result, the counts of its
chunks are unknown. The report counts these chunks, and the table is complete all the same. The report contains no row's
value: filled ranges are named by number.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from tidemark.errors import BackfillClosed, BackfillNotApplied
from tidemark.ledger import migrations
from tidemark.ledger.captured import tables
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.reading import backfill_progress, backfills, chunks
from tidemark.ledger.reading.backfills import Backfill
from tidemark.lsn import Lsn
from tidemark.run import Run
from tidemark.wording import counted, plural

COUNTS: Final = ("inserted", "repaired", "unchanged", "overtaken")


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table's backfill: `read` rows in `chunks` chunks.

    - `unknown` chunks have no merge result, and the counts leave them out.
    - `swept` is None if it is unknown or if nothing was to be swept.
    - `overtaken` rows were not written, because the target has a newer change that was not visible to their snapshot.
      `lost_by_window` counts the ones among them that a watermark window alone would have written over the newer row;
      it is printed if it is not 0.
    - `complete_lsn` is the LSN at which the table equals its source, or its requested part does if it is not the
      `whole` table.
    - `needs_backfill` is the reason if the table needs another backfill.
    """

    table: str
    backfill: str
    whole: bool
    complete_lsn: Lsn | None
    chunks: int
    unknown: int
    read: int
    inserted: int
    repaired: int
    unchanged: int
    overtaken: int
    lost_by_window: int | None
    sweeps: bool
    swept: int | None
    holes: int
    needs_backfill: str | None

    def __str__(self) -> str:
        swept = "" if not self.sweeps else f", {'an unknown number' if self.swept is None else self.swept} swept"
        scope = "complete" if self.whole else "the rows asked for are"
        line = (
            f"{self.table}: {scope} as of {self.complete_lsn}. {counted(self.read, 'row')} read in "
            f"{counted(self.chunks, 'chunk')}: "
            f"{self.inserted} inserted, {self.repaired} repaired, {self.unchanged} unchanged, "
            f"{self.overtaken} overtaken{swept}."
        )
        if self.lost_by_window:
            line += f" A watermark window alone would have lost {counted(self.lost_by_window, 'change')}."
        if self.unknown:
            unknown = counted(self.unknown, "chunk")
            line += f" What became of the rows of {unknown} is not known: the merge ended unheard."
        if self.holes:
            unknown = f"{counted(self.holes, 'value')} {plural(self.holes, 'is')} still unknown"
            line += f" {unknown}, to be filled by {'its key' if self.holes == 1 else 'their keys'}."
        if self.needs_backfill is not None:
            line += f" It needs another backfill: {self.needs_backfill}."
        return line


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """The run's backfills by table; empty if other runs have adopted them all."""

    run_id: str
    tables: tuple[TableReport, ...]

    def __str__(self) -> str:
        if not self.tables:
            return f"Run {self.run_id} has no backfill: nothing was wanted, or another run goes on with it."
        return "\n".join(str(table) for table in self.tables)

    def to_json(self) -> list[dict[str, Any]]:
        return [{f.name: _plain(getattr(table, f.name)) for f in fields(table)} for table in self.tables]


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Lsn) else value


def report(run: Run) -> BackfillReport:
    """The report of the run's backfills. Raises `BackfillNotApplied` (RETRY) while one is open, otherwise
    `BackfillClosed` if one was closed before it was applied."""
    with open_ledger(run.ledger, run.pipeline) as book:
        migrations.require(book.connection)
        with book.transaction():
            book.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            ours = [b for b in backfills.of_run(book, run.run_id) if b.purpose == "fill"]
            pending = [pending_of(book, b) for b in ours if b.state == "open"]
            if pending:
                raise BackfillNotApplied(run_id=run.run_id, pending="; ".join(pending))
            closed = [_closed(book, b) for b in ours if b.state == "closed"]
            if closed:
                raise BackfillClosed(run_id=run.run_id, closed="; ".join(closed))
            return BackfillReport(run.run_id, tuple(_table(book, b) for b in ours))


def progress_lines(run: Run) -> list[str]:
    """A line for each open backfill of the run: its progress and its filled ranges."""
    with open_ledger(run.ledger, run.pipeline) as book:
        migrations.require(book.connection)
        return [
            f"{now}; {filled_ranges(book, now.backfill)}"
            for now in backfill_progress.progress(book, run.run_id)
            if now.state == "open"
        ]


def pending_of(ledger: Ledger, backfill: Backfill) -> str:
    """The remaining work of an open backfill, half a sentence."""
    (now,) = (p for p in backfill_progress.progress(ledger) if p.backfill == backfill.backfill)
    row = tables.one(ledger, backfill.table)
    suspension = ""
    if row is not None and row.life.is_parked and row.error is not None:
        suspension = f" (the table is parked: {row.error.kind})"
    elif row is not None and row.life.is_paused:
        suspension = f" (the table is paused by {row.paused_by})"
    if now.ranges_done < now.ranges:
        again = ""
        if unread := chunks.rejected_unread(ledger, backfill.backfill):
            read = f"{counted(unread, 'chunk')} {plural(unread, 'was')} read before the table changed"
            again = f", {read} and {plural(unread, 'is')} read again: clear read_chunks"
        progress = f"{now.ranges_done} of {counted(now.ranges, 'range')} {plural(now.ranges_done, 'is')} read"
        return f"{backfill.table}: {progress}, {counted(now.rows, 'row')} so far{again}{suspension}"
    if now.claimed < now.chunks:
        left = now.chunks - now.claimed
        wait = "waits" if left == 1 else "wait"
        return f"{backfill.table}: {left} of {counted(now.chunks, 'chunk')} {wait} for a drain{suspension}"
    claimed = (
        "its one chunk is claimed and waits" if now.chunks == 1 else f"all {now.chunks} chunks are claimed and wait"
    )
    return f"{backfill.table}: {claimed} for a merge{suspension}"


def _closed(ledger: Ledger, backfill: Backfill) -> str:
    return f"{backfill.table} ({backfill.state_reason}; {filled_ranges(ledger, backfill.backfill)})"


def filled_ranges(ledger: Ledger, backfill: str) -> str:
    """The ranges whose chunks are claimed, half a sentence. The bounds are in the ledger's tables `ranges` and
    `chunks`."""
    ranges = chunks.ranges_of(ledger, backfill)
    read = chunks.of_backfill(ledger, backfill)
    whole, begun = [], []
    for key_range in ranges:
        own = [c for c in read if c.range == key_range.range]
        claimed = sum(c.claimed_lsn is not None for c in own)
        if key_range.done and claimed == len(own):
            whole.append(str(key_range.range))
        elif claimed:
            begun.append(f"{key_range.range} up to chunk {key_range.range}-{claimed}")
    phrases = [f"range {', '.join(whole)} as a whole"] * bool(whole) + [f"range {one}" for one in begun]
    return f"filled of {counted(len(ranges), 'range')}: {', '.join(phrases) or 'none'}"


def _table(ledger: Ledger, backfill: Backfill) -> TableReport:
    read = [c for c in chunks.of_backfill(ledger, backfill.backfill) if c.claimed_lsn is not None]
    results = [c.result for c in read if c.result is not None]
    lost = [result.get("lost_by_window", 0) for result in results]
    row = tables.one(ledger, backfill.table)
    return TableReport(
        table=backfill.table,
        backfill=backfill.backfill,
        whole=backfill.whole_table,
        complete_lsn=backfill.complete_lsn,
        chunks=len(read),
        unknown=len(read) - len(results),
        read=sum(c.rows for c in read),
        **{name: sum(result.get(name, 0) for result in results) for name in COUNTS},
        lost_by_window=None if None in lost else sum(lost),
        sweeps=backfill.sweeps,
        swept=backfill.swept,
        holes=0 if row is None else sum(row.holes.values()),
        needs_backfill=row.backfill_reason if row is not None and row.life.needs_backfill else None,
    )
