"""Reports an applied verify: ledger -> `VerifyReport`, whose `str()` is the text of the log.

The run that detected differences raises an error with the remedy, once. The differences stay in `status` until a later
verify detects none, or until a repair. The report contains no row's value; the keys are in a Delta table.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tidemark.backfill.backfill_report import pending_of
from tidemark.config import PipelineConfig
from tidemark.errors import BackfillNotApplied, DifferencesFound, DifferencesRepaired, NothingProven
from tidemark.formats import layout
from tidemark.ledger import migrations
from tidemark.ledger.captured import tables
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.ledger.reading import backfills, proofs
from tidemark.ledger.reading.backfills import Backfill
from tidemark.ledger.reading.proofs import VerifyOutcome
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.run import Run
from tidemark.schema.fingerprint import HASHED, listed_columns
from tidemark.wording import counted


@dataclass(frozen=True, slots=True)
class TableProof:
    """One table's verify.

    - `parts` is the number of parts that were read, of `of_parts`. None if only the rows of a filter were read.
    - `unproven` is the reason why nothing is proven, as a clause; None if something is.
    - `through_lsn` and `through_at` are the table's oldest proof.
    - `columns` is the number of compared columns. `not_compared` lists the source's other columns, each with the
      reason. For a hashed column, the hashes are compared.
    """

    table: str
    verify: str
    repaired: bool
    proven_lsn: Lsn | None
    parts: int | None
    of_parts: int
    outcome: VerifyOutcome
    unproven: str | None
    through_lsn: Lsn | None
    through_at: datetime | None
    columns: int
    not_compared: str

    def __str__(self) -> str:
        read = f"{counted(self.outcome.rows, 'row')} compared in {counted(self.outcome.chunks, 'chunk')}"
        extent = "the rows of the filter" if self.parts is None else f"{self.parts} of {counted(self.of_parts, 'part')}"
        if self.unproven is not None:
            return f"{self.table}: {read}, and nothing is proven: {self.unproven}."
        if not self.outcome.differences:
            line = f"{self.table}: {extent} equal to the source as of {self.proven_lsn}. {read}, {self._columns}."
        else:
            line = f"{self.table}: {self.outcome}; {read}, {self._columns}."
        if self.through_lsn is not None and self.through_at is not None:
            line += f" The whole table is proven through {self.through_lsn} ({self.through_at:%Y-%m-%d %H:%M} UTC)."
        return line

    @property
    def _columns(self) -> str:
        compared = f"in {counted(self.columns, 'column')}"
        return f"{compared}; nothing is proven of {self.not_compared}" if self.not_compared else compared


@dataclass(frozen=True, slots=True)
class VerifyReport:
    run_id: str
    tables: tuple[TableProof, ...]

    def __str__(self) -> str:
        return "\n".join(str(table) for table in self.tables) or f"Run {self.run_id} verified nothing: nothing was due."


def report(run: Run) -> VerifyReport:
    """The report of the run's verifies, if all tables are equal and proven.

    Raises BackfillNotApplied while a verify is open. Raises DifferencesFound, DifferencesRepaired, or NothingProven if
    a table could not be compared; none of these is retried.
    """
    verified = read_report(run)
    _raise_for(run.config, verified)
    return verified


def read_report(run: Run) -> VerifyReport:
    """The report of the run's verifies, whatever they detected. Raises BackfillNotApplied while one is open."""
    with open_ledger(run.ledger, run.pipeline) as book:
        migrations.require(book.connection)
        with book.transaction():
            book.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            ours = [b for b in backfills.of_run(book, run.run_id) if b.purpose != "fill"]
            pending = [pending_of(book, b) for b in ours if b.state == "open"]
            if pending:
                raise BackfillNotApplied(run_id=run.run_id, pending="; ".join(pending))
            return VerifyReport(run.run_id, tuple(_table(book, b) for b in ours))


def _raise_for(config: PipelineConfig, verified: VerifyReport) -> None:
    """Raises the error for the report's differences, or else for tables that are not proven."""
    differing = [t for t in verified.tables if t.unproven is None and t.outcome.differences]
    if differing:
        names = "; ".join(f"{t.table}: {t.outcome}" for t in differing)
        where = layout.differences_table(config.pipeline, TableName.parse(differing[0].table))
        facts = {"pipeline": config.pipeline, "differences": names, "keys": f"{config.lake}/{where}"}
        if all(t.repaired for t in differing):
            raise DifferencesRepaired(**facts)
        raise DifferencesFound(**facts)
    unproven = [t for t in verified.tables if t.unproven is not None]
    if unproven:
        reasons = "; ".join(f"{t.table} ({t.unproven})" for t in unproven)
        raise NothingProven(pipeline=config.pipeline, tables=reasons)


def _table(ledger: Ledger, verify: Backfill) -> TableProof:
    row = tables.one(ledger, verify.table)
    outcome = proofs.outcome(ledger, verify)
    progress = proofs.verified(ledger).get(verify.table)
    of_parts = 0 if progress is None else progress.parts
    unproven = None
    if verify.state == "closed":
        unproven = verify.state_reason or "it was closed"
    elif row is not None and row.life.needs_backfill:
        unproven = f"the table needs a backfill: {row.backfill_reason}"
    elif outcome.unknown and not outcome.differences:
        unproven = f"what became of {counted(outcome.unknown, 'chunk')} is not known"
    versions = tables.versions(ledger, verify.table)
    compared = [] if not versions else [column for column in versions[-1].columns if column.mask != "null"]
    left_out = () if row is None else tuple(column for column in row.uncaptured if column.why != HASHED)
    parts = None
    if verify.row_filter is None:
        parts = of_parts if verify.parts is None else len(verify.parts)
    return TableProof(
        table=verify.table,
        verify=verify.backfill,
        repaired=verify.purpose == "repair",
        proven_lsn=verify.complete_lsn,
        parts=parts,
        of_parts=of_parts,
        outcome=outcome,
        unproven=unproven,
        through_lsn=None if progress is None else progress.through_lsn,
        through_at=None if progress is None else progress.through_at,
        columns=len(compared),
        not_compared=listed_columns(left_out),
    )
