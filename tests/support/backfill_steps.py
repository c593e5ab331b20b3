"""The steps of scenarios that backfill, or whose tasks are killed: one run of the backfill DAG for all of them, with a
hand in its inside.

`fire` is called at the points of a run where a scenario may have something to do at the source: between the low
watermark of a chunk and its snapshot, between the chunk and its high watermark, while the plan waits for transactions,
after a snapshot was exported. Where they are is known from what Tidemark calls there; nothing of it runs otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from tests.support import judge
from tests.support.capture import Environment, RunReport
from tests.support.scenario import Scenario
from tidemark.backfill import exported_snapshot
from tidemark.backfill.backfill_tables import BackfillRequest
from tidemark.backfill.range_reading import ReadResult
from tidemark.backfill.read_sessions import ImportedSnapshot
from tidemark.errors import BackfillClosed, BackfillNotApplied
from tidemark.formats.watermark import Watermark
from tidemark.names import TableName
from tidemark.run import Run
from tidemark.source.catalogue import transaction_visibility
from tidemark.source.wal import wal_messages

# From "low", "high", "horizon" or "export" and a table, None where the point is none of one table.
Fire = Callable[[str, TableName | None], None]


@dataclass(slots=True)
class BackfillSteps:
    """One backfill run at a time; a drain in between is another run's."""

    environment: Environment
    fire: Fire
    run: RunReport = field(default_factory=lambda: RunReport("none yet"))
    has_killed: bool = False

    def crash(self, failpoint: str, scenarios: list[Scenario]) -> None:
        """Kill the task of that name at the failpoint: a new run's, but for a reader, who is of the backfill's run."""
        environment = self.environment
        self.has_killed = True
        if _task(failpoint) == "plan":
            return self.plan(scenarios, lambda: environment.crash(failpoint))
        if _task(failpoint) == "read":
            environment.report = self.run
        else:
            environment.begin_run()
        return environment.crash(failpoint)

    def retry(self, killed_at: str) -> None:
        """The task that was killed last, once more, at once and in the same run."""
        with watching(self.fire):
            getattr(self.environment, _task(killed_at))()

    def plan(self, scenarios: list[Scenario], task: Callable[[], object] | None = None) -> None:
        """What has rows per chunk or a mode of its own is planned by itself, in the same run."""
        environment = self.environment
        forms = sorted({(s.chunk_rows or 0, s.mode) for s in scenarios})
        for number, (chunk_rows, mode) in enumerate(forms):
            schemas = {s.name for s in scenarios if (s.chunk_rows or 0, s.mode) == (chunk_rows, mode)}
            tables = tuple(table for table in backfilled(environment) if TableName.parse(table).schema in schemas)
            if number == 0:
                environment.begin_backfill()
                self.run = environment.report
            environment.request = BackfillRequest(tables=tables, chunk_rows=chunk_rows or None, mode=mode)
            with watching(self.fire):
                (task or environment.plan)()

    def read(self) -> None:
        self.environment.report = self.run
        with watching(self.fire):
            self.environment.read()

    def end(self) -> None:
        """A chunk that was rejected leaves its backfill open, and a table that another one follows closes it: then
        there is no report."""
        self.environment.report = self.run
        self.run.backfilled = {}
        try:
            self.run.backfilled = {table.table: table for table in self.environment.end_backfill().tables}
        except (BackfillNotApplied, BackfillClosed) as pending:
            self.run.pending = str(pending)

    def wanted(self) -> None:
        self.environment.backfill()

    def verify(self, *, repair: bool) -> None:
        """All of every table that can be proven."""
        with watching(self.fire):
            report = self.environment.verify(repair=repair)
        self.environment.report.verified = {table.table: table for table in report.tables}

    def again(self) -> dict[str, str]:
        """Backfill everything once more; what was written although nothing had changed, by Delta table."""
        before = judge.delta_versions(self.environment)
        self.environment.backfill(*backfilled(self.environment, again=True))
        return judge.data_written_since(self.environment, before)


def _task(failpoint: str) -> str:
    return failpoint.partition(".")[0]


def backfilled(environment: Environment, again: bool = False) -> list[str]:
    """The tables to backfill; history alone would be doubled by reading its table twice, and the plan refuses it."""
    tables = []
    for table, row in judge.captured(environment).items():
        print_ = row.fingerprint or {"key": (), "identity": "full"}
        if row.life.merge != "parked" and (print_["key"] or print_["identity"] == "full" or not again):
            tables.append(table)
    return tables


@contextmanager
def watching(fire: Fire) -> Iterator[None]:
    emit, read = wal_messages.emit, exported_snapshot.read_chunks
    in_flight = transaction_visibility.transactions_in_flight

    def emit_and_fire(connection: Any, mark: Watermark) -> Any:
        table = TableName.parse(mark.table)
        if mark.side == "high":
            fire("high", table)
        lsn = emit(connection, mark)
        if mark.side == "low":
            fire("low", table)
        return lsn

    def fire_and_look(connection: Any) -> list[str]:
        fire("horizon", None)
        return in_flight(connection)

    def fire_and_read(run: Run, *, imported: ImportedSnapshot) -> ReadResult:
        fire("export", None)
        return read(run, imported=imported)

    with (
        patch.object(wal_messages, "emit", emit_and_fire),
        patch.object(transaction_visibility, "transactions_in_flight", fire_and_look),
        patch.object(exported_snapshot, "read_chunks", fire_and_read),
    ):
        yield
